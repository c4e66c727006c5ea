"""Readers hear where their request stands when its deltas do not say it, and only then."""

from dataclasses import replace

from app.contract.events import Phase, Progress, TokenDelta
from app.engine.engine import Engine
from app.engine.phases import Phases
from tests.checkpoints import tiny
from tests.engine.driving import Run, build, request


def watched(**settings: object) -> tuple[Engine, Run]:
    engine = build(tiny("Llama"), **{"max_num_batched_tokens": 16, "max_num_seqs": 2, **settings})
    engine.phases = Phases(engine.scheduler.queues)
    return engine, Run(engine)


def said(run: Run) -> list[tuple[str, str, int, int]]:
    """What readers have heard since the last call of where their requests stand."""
    heard = [*run.events, *run.engine.phases.take_changes()]
    run.events = [event for event in heard if not isinstance(event, Progress)]
    return [tuple(event) for event in heard if isinstance(event, Progress)]


def ask(run: Run, name: str, num_prompt: int = 4, **params: object) -> None:
    run.add(request(run.engine, name, range(10, 10 + num_prompt), **params))


def test_a_request_that_answers_at_once_tells_nothing():
    engine, run = watched()
    ask(run, "a")
    run.step(3)
    assert said(run) == []
    run.finish()
    assert said(run) == []
    assert not (engine.phases._reported or engine.phases._changed or engine.phases._prefilling)


def test_a_request_in_line_is_reported_that_it_waits_once_and_no_more_when_it_answers():
    _, run = watched(max_num_seqs=1)
    ask(run, "a", max_tokens=8)
    ask(run, "b", max_tokens=4)
    run.step()
    assert said(run) == [("b", Phase.QUEUED, 0, 4)]
    run.step()
    assert said(run) == []
    run.finish()
    assert said(run) == []


def test_a_long_prompt_tells_how_much_of_it_is_read_step_by_step():
    _, run = watched()
    ask(run, "a", num_prompt=40)
    told = []
    while not run.tokens("a"):
        run.step()
        told += said(run)
    assert told == [("a", Phase.PREFILL, 16, 40), ("a", Phase.PREFILL, 32, 40)]


def test_a_pause_is_reported_when_the_engine_pauses_and_the_return_when_it_goes_on():
    engine, run = watched()
    ask(run, "a")
    run.step(3)
    engine.pause("a")
    assert said(run) == [("a", Phase.PAUSED, 6, 7)]
    engine.pause("a")
    run.step()
    assert said(run) == []
    engine.resume("a")
    run.step()
    assert said(run) == [("a", Phase.DECODE, 7, 8)]
    run.finish()
    assert said(run) == []


def test_a_request_that_loses_its_blocks_tells_of_it_and_of_its_return():
    engine, run = watched(num_kv_blocks=8, block_size=8, enable_prefix_caching=False, max_num_batched_tokens=16)
    ask(run, "a", num_prompt=8, max_tokens=40)
    ask(run, "b", num_prompt=8, max_tokens=40)
    told = []
    for _ in range(200):
        if not engine.has_ready_work:
            break
        run.step()
        told += said(run)
    phases = [phase for name, phase, _, _ in told if name == "b"]
    assert phases[0] is Phase.PREEMPTED
    assert phases[-1] is Phase.DECODE
    assert set(phases) == {Phase.PREEMPTED, Phase.PREFILL, Phase.DECODE}
    assert all(done <= total for _, _, done, total in told)
    assert [name for name, *_ in told if name == "a"] == []
    assert not engine.phases._reported


def test_ends_are_forgotten_wherever_they_come():
    engine, run = watched(max_num_seqs=1)
    for name in ("a", "b", "c"):
        ask(run, name, num_prompt=40)
    run.step()
    assert {name for name, *_ in said(run)} == {"a", "b", "c"}
    for name in ("a", "b", "c"):
        engine.abort(name, 0.0)
    assert said(run) == []
    assert not (engine.phases._reported or engine.phases._prefilling)


def test_without_phases_nothing_is_noted():
    engine = build(tiny("Llama"))
    run = Run(engine)
    ask(run, "a")
    run.step()
    assert engine.scheduler.queues.changed is None
    assert any(isinstance(event, TokenDelta) for event in run.events)


def test_who_gave_its_seat_to_another_account_waits_for_its_turn():
    engine, run = watched(max_num_seqs=2, scheduling_policy="fair")
    for name in ("a", "b"):
        ask(run, name)
    run.step(3)
    said(run)
    run.add(replace(request(engine, "c", range(3, 9), max_tokens=2), account="other"))
    run.step()
    assert said(run) == [("b", Phase.QUEUED, 6, 7)]
    run.step(2)
    assert said(run) == [("b", Phase.DECODE, 7, 8)]
