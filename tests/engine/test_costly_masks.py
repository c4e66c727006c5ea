"""Grammars whose masks cost too much, or whose process somebody ends: one request fails at most, no other notices."""

from __future__ import annotations

import gc
import os
import random
import signal
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

import pytest

from app.contract.errors import GrammarTooCostly
from app.contract.events import RequestFailed, TokenDelta
from app.contract.grammar import StructuredOutputs
from app.contract.requests import EngineRequest
from app.engine.engine import Engine
from app.engine.execute import worker_masks
from app.engine.execute.remote_sequences import TOO_COSTLY
from app.engine.execute.worker_masks import WorkerMasks
from app.text.grammar.children.mask_messages import Ready
from app.text.grammar.grammar_sources import grammar_of
from tests.cases import long
from tests.engine import driving
from tests.engine.constrained import Answer, Constrained, answer_all, answers
from tests.engine.driving import Run, build
from tests.engine.served import ignore_time
from tests.text.grammar.processes import children_of, num_descriptors, wait_until
from tests.text.grammar.served_cache import ServedCache

PROMPT = [5, 9, 30, 41]
WANTED: list[dict[str, Any]] = [
    {"json": {"type": "object", "properties": {"name": {"type": "string"}, "count": {"type": "integer"}}}},
    {"regex": "[a-f]{3,12}-[0-9]+"},
    {"choice": ["yes", "no", "maybe, but not today"]},
    {"json": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "minItems": 3}},
]


def costly(name: str) -> dict[str, Any]:
    """A schema that compiles in a millisecond, and whose mask behind five letters takes seconds."""
    patterns = [{"pattern": f"^(z*q|z{{6}}(.*){name}{number}(.*))$"} for number in range(21)]
    return {"json": {"type": "string", "allOf": patterns}}


class Company:
    """31 requests of many accounts, and one more among them."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.made = engine, Constrained(engine)
        (self.letter,) = engine.output._tokenizer.encode("z", add_special_tokens=False)

    def requests(self) -> list[EngineRequest]:
        found = []
        for number in range(31):
            wanted = WANTED[number % len(WANTED)]
            each = self.made.request(f"good {number}", PROMPT, wanted, seed=number, max_tokens=24)
            found.append(replace(each, account=f"account {number % 7}"))
        return found

    def bad(self, name: str, account: str = "bad") -> EngineRequest:
        """A request that comes to the costly mask."""
        fields = {"temperature": 0.0, "logit_bias": {self.letter: 100.0}, "max_tokens": 24}
        return replace(self.made.request(f"bad {name}", PROMPT, costly(name), **fields), account=account)


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    """An engine with room for all, whose masks another process makes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driving, "make_grammars", ServedCache)
        engine = build("guide", max_num_seqs=40, max_num_batched_tokens=256, max_model_len=128, num_kv_blocks=400)
    yield engine
    engine.grammars.close()


@pytest.fixture(scope="module")
def alone() -> dict[tuple[str, int], Answer]:
    """What the 31 answer undisturbed, with masks of this process."""
    engine = build("guide", max_num_seqs=40, max_num_batched_tokens=256, max_model_len=128, num_kv_blocks=400)
    return answer_all(engine, Company(engine).requests())


def worker_of(engine: Engine) -> int:
    """The process that finds masks."""
    children = engine.grammars.children
    assert children is not None and children.pid is not None
    pid = children.pid
    wait_until(lambda: len(children_of(pid)) == 1)
    return children_of(pid)[0]


def masks_of(engine: Engine) -> WorkerMasks:
    masks = engine.runner.masks
    assert isinstance(masks, WorkerMasks)
    return masks


def check_nothing_is_held(engine: Engine) -> None:
    """Of requests that have ended."""
    masks = masks_of(engine)
    masks._remote.receive(lambda: not masks._remote._ending)
    remote = masks._remote
    assert not (remote._sequences or remote._by_number or remote.late or remote._takes or remote._drafts)
    assert masks._remote._regions.num_free == masks._first_draft_region
    assert engine.stats().blocks.num_free == engine.stats().blocks.num_blocks


def test_answers_are_those_of_masks_made_in_this_process(engine: Engine, alone: dict):
    assert answer_all(engine, Company(engine).requests()) == alone
    check_nothing_is_held(engine)


def die_in_company(engine: Engine, alone: dict, count: int) -> None:
    """Let a process end in a company of 32 again and again; only the request that it ended for notices."""
    company, cache, before = Company(engine), engine.grammars, None
    for number in range(count):
        name, run = f"{count}x{number}y", Run(engine)
        requests = company.requests()
        bad = company.bad(name, account=f"bad {number}")
        requests.insert(random.Random(number).randrange(32), bad)
        run.add(*requests)
        run.finish()
        end = run.end(bad.id)
        assert isinstance(end, RequestFailed) and end.error.code == "invalid_value", end
        assert TOO_COSTLY[1:] in end.error.message
        assert answers(run) == alone
        with pytest.raises(GrammarTooCostly, match=r"0\.1 s"):
            cache.lease(grammar_of(cast(StructuredOutputs, bad.params.structured_outputs)), "somebody else")
        check_nothing_is_held(engine)
        if number == 1:
            gc.collect()  # what other tests have left
            before = num_descriptors()
    gc.collect()
    assert before == num_descriptors()
    worker_of(engine)


@pytest.mark.parametrize("count", [6, long(20)])
def test_a_costly_row_fails_alone_in_a_company_of_32(engine: Engine, alone: dict, count: int):
    before = engine.grammars.num_processes
    die_in_company(engine, alone, count)
    assert engine.grammars.num_processes - before in (count, count + 1)
    check_charged(engine)


@pytest.mark.long
def test_a_costly_row_fails_alone_a_hundred_times(engine: Engine, alone: dict):
    die_in_company(engine, alone, 100)


def check_charged(engine: Engine) -> None:
    """Its account, once for each process that has ended for it."""
    company, cache = Company(engine), engine.grammars
    for number in range(4):
        assert not cache.is_barred("charged")
        run = Run(engine)
        run.add(company.bad(f"charged{number}y", "charged"))
        run.finish()
    assert cache.is_barred("charged") and not cache.is_barred("account 1")


def test_a_grammar_that_keeps_the_interpreters_lock_ends_one_process(engine: Engine):
    """All others' masks wait for each: its sequence was the only one at work, so it is not tried again."""
    made, cache = Company(engine).made, engine.grammars
    answer_all(engine, [made.request("good", PROMPT, WANTED[1], max_tokens=4)])
    sets = "".join(f' | p::set_bit({bit}) "{chr(97 + bit)}" %if bit_clear({bit})' for bit in range(14))
    wanted = {"grammar": f'start: <[0-255]> q\nq: p::0 | "stuck"\np::_: ""{sets}'}
    before, run = cache.num_processes, Run(engine)
    run.add(replace(made.request("stuck", PROMPT, wanted, max_tokens=8), account="stuck"))
    run.finish()
    end = run.end("stuck")
    assert isinstance(end, RequestFailed) and TOO_COSTLY[1:] in end.error.message
    assert cache.num_processes - before == 1, "the one for all others"
    check_nothing_is_held(engine)


@pytest.mark.parametrize("seed", range(6))
def test_a_process_that_somebody_ends_costs_no_token(engine: Engine, alone: dict, seed: int):
    """At many moments, while none is suspected: else one that is worked on both times would seem to blame."""
    rng, run = random.Random(seed), Run(engine)
    requests = Company(engine).requests()
    num_before, num_killed = engine.grammars.num_processes, 0
    run.add(*requests)
    while engine.has_ready_work:
        run.step(rng.randint(1, 8))
        masks = masks_of(engine)
        if masks._remote._sequences:
            masks._remote.receive(lambda masks=masks: masks._remote._link is not None and not masks._remote._suspects)
            pid = worker_of(engine)
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda pid=pid: not os.path.exists(f"/proc/{pid}"))
            num_killed += 1
    run.finish()
    assert [each for each in run.events if isinstance(each, RequestFailed)] == []
    assert answers(run) == alone
    assert 2 < num_killed <= engine.grammars.num_processes - num_before + 1
    check_nothing_is_held(engine)


def test_rows_go_on_although_what_forks_was_ended_too(alone: dict, monkeypatch: pytest.MonkeyPatch):
    """A new one is started beside the engine."""
    monkeypatch.setattr(driving, "make_grammars", lambda: ServedCache(is_shared=False))
    engine = build("guide", max_num_seqs=40, max_num_batched_tokens=256, max_model_len=128, num_kv_blocks=400)
    children, run = engine.grammars.children, Run(engine)
    assert children is not None
    run.add(*Company(engine).requests())
    run.step(4)
    first, worker = children.pid, worker_of(engine)
    assert first is not None
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: children.pid is None)
    run.step(3)
    os.kill(worker, signal.SIGKILL)
    run.finish()
    assert answers(run) == alone and children.pid not in (None, first)
    check_nothing_is_held(engine)
    last = children.pid
    engine.grammars.close()
    assert not os.path.exists(f"/proc/{last}")


class SlowAccount:
    """Lets the masks of one account come several steps late."""

    def __init__(self, masks: WorkerMasks, monkeypatch: pytest.MonkeyPatch, num_steps: int) -> None:
        self._masks, self._num_steps, self._held = masks, num_steps, list[tuple[int, Ready]]()
        self._step = 0
        self._apply, self._late = masks._remote._apply_ready, masks.late
        monkeypatch.setattr(masks._remote, "_apply_ready", self.apply_ready)
        monkeypatch.setattr(masks, "late", self.late)

    def apply_ready(self, ready: Ready) -> None:
        sequence = self._masks._remote._by_number.get(ready.sequence_id)
        if sequence is not None and sequence.account == "slow" and sequence.tokens:
            self._held.append((self._step + self._num_steps, ready))
        else:
            self._apply(ready)

    def late(self) -> Any:
        self._step += 1
        due = [ready for step, ready in self._held if step <= self._step]
        self._held = [each for each in self._held if each[0] > self._step]
        for ready in due:
            self._apply(ready)
        return self._late()

    def flush(self) -> None:
        """Let all come: of sequences that have ended, too."""
        for _, ready in self._held:
            self._apply(ready)


def test_slow_masks_hold_up_no_other_account(engine: Engine, alone: dict, monkeypatch: pytest.MonkeyPatch):
    """Rows of one account sit steps out; those of others have a token in each step, with a grammar or without one."""
    ignore_time(monkeypatch)
    monkeypatch.setattr(worker_masks, "WAIT_S", 0.0)
    monkeypatch.setattr(worker_masks, "IDLE_S", 0.0)
    company, masks = Company(engine), masks_of(engine)
    slow = [replace(each, account="slow") for each in company.requests()]
    with pytest.MonkeyPatch.context() as patch:
        account = SlowAccount(masks, patch, 6)
        quick = company.made.request("quick", PROMPT, {"regex": "[a-z]{200}"}, max_tokens=20)
        plain = company.made.request("plain", PROMPT, max_tokens=20, ignore_eos=True)
        run = Run(engine)
        run.add(*slow, quick, plain)
        while run.end("plain") is None:
            run.step()
            masks._remote.receive(lambda: not any(each.account != "slow" for each in masks._remote.late.values()))
        num_turns = len({id(event) for event in run.of("plain")})
        assert len(run.tokens("quick")) == len(run.tokens("plain")) == 20 and num_turns >= 20
        assert all(len(run.tokens(each.id)) < 20 / 2 for each in slow)
        run.finish()
        account.flush()
    assert {key: value for key, value in answers(run).items() if key[0].startswith("good")} == alone
    assert not any(isinstance(event, RequestFailed) for event in run.events)
    assert any(isinstance(event, TokenDelta) for event in run.of("quick"))
    check_nothing_is_held(engine)
