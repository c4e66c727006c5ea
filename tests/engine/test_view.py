"""The view makes pictures of the engine's books, for those who watch and for nobody else."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from itertools import count
from math import inf
from types import FrameType
from typing import Any

import pytest

from app.config.settings import make_config
from app.contract.engine_picture import EnginePicture, GroupState, StateRecord, StepRecord, Watch
from app.contract.requests import Abort, EngineCommand, Submit
from app.engine.engine import Engine
from app.engine.schedule.step_plan import Chunks, StepPlan, StepResult
from app.engine.thread import EngineThread
from app.engine.view import COST_TIMES, MIN_INTERVAL_S, View
from tests.checkpoints import tiny
from tests.engine.driving import Run, build, request
from tests.engine.pictures import check_blocks, check_groups, ids
from tests.engine.schedule.fake_model import Driver
from tests.engine.scripted_engine import HANG_S, ReportCollector, record_wait_timeouts
from tests.engine.sequence_groups import make_progress


def engine(**settings: object) -> Engine:
    return build(tiny("Llama"), **{"max_num_batched_tokens": 32, "max_num_seqs": 8, **settings})


class Watching:
    """An engine in virtual time, in which every turn takes a second, with somebody who watches."""

    def __init__(self, built: Engine) -> None:
        self.engine, self.now = built, 0.0
        self.pictures: list[EnginePicture] = []
        built.clock = lambda: self.now
        self.turn([Watch(True)])

    def turn(self, commands: Sequence[EngineCommand] = ()) -> EnginePicture:
        """Do a turn, and compare its picture with the books."""
        self.now += 1.0
        picture = self.engine.turn(commands, self.now).picture
        assert picture is not None
        check_blocks(picture, self.engine.scheduler)
        check_groups(picture, self.engine.scheduler)
        self.pictures.append(picture)
        return picture

    def finish(self) -> None:
        """Do turns until no request is open."""
        while self.engine.has_ready_work:
            self.turn()

    def states(self, request_id: str) -> list[str]:
        """The states of a request in the records so far."""
        records = [record for picture in self.pictures for record in picture.records]
        return [one.state.value for one in records if isinstance(one, StateRecord) and one.request_id == request_id]


def submit(built: Engine, name: str, num_prompt: int = 20, **params: object) -> Submit:
    first = 10 + 40 * len(name)
    return Submit(request(built, name, range(first, first + num_prompt), **params))


# --- Who watches --------------------------------------------------------------------------------------------------


def calls_of(action: Callable[[], object]) -> list[str]:
    """The functions of the engine, without the model, that an action calls, by file and name."""
    called = []

    def note(frame: FrameType, event: str, argument: Any) -> None:
        _, is_engine, file = frame.f_code.co_filename.rpartition("app/engine/")
        if event == "call" and is_engine and not file.startswith("execute"):
            called.append(f"{file}:{frame.f_code.co_name}")

    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(None)
    return called


def test_while_nobody_watches_a_turn_calls_nothing_for_it():
    built = engine()
    run = Run(built)
    run.add(request(built, "a", range(10, 14)))
    run.step(3)
    before = calls_of(lambda: built.turn((), 0.0))
    assert "engine.py:step" in before and not any(name.startswith(("view", "record_ring")) for name in before)
    built.turn([Watch(True)], 0.0)
    assert {"view.py:take_step", "view.py:take_picture"} <= set(calls_of(lambda: built.turn((), 0.0)))
    built.turn([Watch(False)], 0.0)
    assert calls_of(lambda: built.turn((), 0.0)) == before, "nothing is left of the view"


def test_to_watch_begins_and_ends_once():
    built = engine()
    changed = built.scheduler.queues._changed
    assert built.turn((), 0.0).picture is None
    first = built.turn([Watch(True)], 0.0).picture
    view = built.view
    assert first is not None and first.number == 1 and len(changed) == 1
    assert built.turn([Watch(True)], 0.0).picture is None and built.view is view
    for _ in range(2):
        assert built.turn([Watch(False)], 0.0).picture is None
        assert built.view is None and not built.scheduler.queues._changed
    again = built.turn([Watch(True)], 0.0).picture
    assert again is not None and again.number == 2, "no two pictures of an engine have one number"


# --- When ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("cost", "interval"), [(0.0, MIN_INTERVAL_S), (0.0005, MIN_INTERVAL_S), (0.004, 0.8)])
def test_the_next_picture_comes_after_many_times_the_cost_of_the_last(cost: float, interval: float):
    driver = Driver()
    ticks = count(0.0, cost)
    view = View(driver.scheduler, count(1), clock=lambda: next(ticks))
    assert view.due == -inf
    first = view.take_picture(50.0)
    assert first is not None and first.duration_s == pytest.approx(cost) and view.due == inf
    driver.add()
    assert view.take_picture(50.01) is None
    assert view.due == pytest.approx(50.0 + interval)
    assert view.take_picture(view.due - 1e-6) is None
    second = view.take_picture(view.due)
    assert second is not None and (second.number, view.due) == (2, inf)
    assert second.time - first.time == pytest.approx(max(MIN_INTERVAL_S, COST_TIMES * cost))


def test_records_belong_to_the_cost_of_their_picture():
    driver = Driver()
    ticks = count(0.0, 0.004)  # a picture takes one of them, and so does a step
    view = View(driver.scheduler, count(1), clock=lambda: next(ticks))
    for _ in range(3):
        view.take_step(StepPlan(1, Chunks(), (), ()), StepResult(1, ()), make_progress(), 49.0)
    assert view.take_picture(50.0) is not None
    driver.add()
    assert view.take_picture(50.01) is None
    assert view.due == pytest.approx(50.0 + COST_TIMES * 4 * 0.004)


def test_an_engine_at_rest_makes_a_last_picture_and_then_none():
    built = engine()
    now = 100.0
    built.clock = lambda: now
    assert built.next_wakeup(now) == inf
    report = built.turn([Watch(True)], now)
    assert report.picture is not None and report.picture.groups == () and built.next_wakeup(now) == inf
    now = 101.0
    report = built.turn([submit(built, "a", max_tokens=2)], now)
    assert report.picture is not None and [group.state for group in report.picture.groups] == [GroupState.RUNNING]
    while built.has_ready_work:
        now += 0.001
        assert built.next_wakeup(now) == now
        assert built.turn((), now).picture is None
    assert built.next_wakeup(now) == pytest.approx(101.0 + MIN_INTERVAL_S)
    now = built.next_wakeup(now)
    last = built.turn((), now).picture
    assert last is not None and last.groups == ()
    assert [record.state for record in last.records if isinstance(record, StateRecord)] == [GroupState.ENDED]
    assert built.next_wakeup(now) == inf


def test_the_thread_of_an_engine_at_rest_sends_a_last_picture_and_sleeps_on(monkeypatch: pytest.MonkeyPatch):
    timeouts = record_wait_timeouts(monkeypatch)
    built, collector = engine(), ReportCollector()
    thread = EngineThread(make_config({"model": str(tiny("Llama"))}), build=lambda progress: built)
    thread.start(collector)
    thread.post(Watch(True))
    collector.wait(lambda: any(report.picture for report in collector.reports))
    thread.post(submit(built, "a", max_tokens=1))
    collector.wait(lambda: is_at_rest(collector.reports[-1].picture))
    thread.stop()
    assert thread.join(HANG_S)
    until_a_picture = [timeout for timeout in timeouts if timeout != threading.TIMEOUT_MAX]
    assert len(until_a_picture) <= sum(report.picture is not None for report in collector.reports)


def is_at_rest(picture: EnginePicture | None) -> bool:
    """Whether a picture has no request, and the end of the last one is known."""
    return picture is not None and not picture.groups and any(isinstance(one, StateRecord) for one in picture.records)


# --- What ---------------------------------------------------------------------------------------------------------

SITUATIONS: dict[str, dict[str, object]] = {
    "plain": {},
    "no prefix cache": {"enable_prefix_caching": False},
    "few blocks": {"num_kv_blocks": 10},
    "few blocks and swap space": {"num_kv_blocks": 10, "swap_space": 2**21},
    "drafts": {"speculative_ngram": 4},
}


@pytest.mark.parametrize("name", SITUATIONS)
def test_every_picture_equals_the_books(name: str):
    built = engine(**SITUATIONS[name])
    watching = Watching(built)
    watching.turn([
        submit(built, "a", max_tokens=40), submit(built, "a" * 3, 30, n=3, temperature=1.0, seed=1),
        submit(built, "b", max_tokens=12), submit(built, "beams", n=2, use_beam_search=True, beam_width=3),
    ])  # fmt: skip
    for _ in range(6):
        watching.turn()
    watching.turn([submit(built, "later", 50, max_tokens=30), Abort("b")])
    watching.finish()
    steps = [one for picture in watching.pictures for one in picture.records if isinstance(one, StepRecord)]
    assert len(steps) == built.num_steps
    shares = [share for step in steps for share in step.shares]
    assert sum(share.num_prompt for share in shares) == built.num_prefill_tokens
    assert sum(share.num_decode for share in shares) == built.num_decode_tokens
    for request_id in ("a", "aaa", "b", "beams", "later"):
        assert watching.states(request_id)[-1] == "ended" and watching.states(request_id).count("ended") == 1
    preemption = built.stats().preemption
    every = [state for request_id in ("a", "aaa", "b", "beams", "later") for state in watching.states(request_id)]
    assert (every.count("preempted") > 0) == (preemption.num_preemptions > preemption.num_swaps)
    assert (every.count("swapped") > 0) == (preemption.num_swaps > 0)
    if "few" in name:
        assert preemption.num_preemptions > 0
    if "swap" in name:
        assert any(picture.num_used_host_blocks for picture in watching.pictures)


def test_a_change_of_state_says_whose_request_it_is():
    driver = Driver()
    view = View(driver.scheduler, count(1), clock=lambda: 0.0)
    driver.add(account="anna")
    driver.add(account="boris")
    picture = view.take_picture(50.0)
    assert picture is not None
    told = [(record.request_id, record.account) for record in picture.records if isinstance(record, StateRecord)]
    assert told == [("r1", "anna"), ("r2", "boris")]


def test_a_request_that_finds_its_prompt_shares_blocks_in_the_picture():
    built = engine()
    watching = Watching(built)
    prompt = range(10, 50)
    for name in ("a", "b"):
        watching.turn([Submit(request(built, name, prompt, max_tokens=8))])
        watching.turn()
        watching.turn()
    first, second = watching.pictures[-1].groups
    shared = set(ids("I", first.tables[0].block_ids)) & set(ids("I", second.tables[0].block_ids))
    assert (first.num_cached, second.num_cached, len(shared)) == (0, 32, 2)
    references = ids("H", watching.pictures[-1].references)
    assert {references[block_id] for block_id in shared} == {2}
