"""The phase of a request is reported only if its deltas do not show it."""

from dataclasses import replace

from app.contract.events import Phase, Progress, TokenDelta
from app.engine.engine import Engine
from app.engine.phases import NUM_PLACES, Phases
from tests.checkpoints import tiny
from tests.engine.driving import Run, build, request


def build_with_phases(**settings: object) -> tuple[Engine, Run]:
    engine = build(tiny("Llama"), **{"max_num_batched_tokens": 16, "max_num_seqs": 2, **settings})
    engine.phases = Phases(engine.scheduler.queues)
    return engine, Run(engine)


def take_progress(run: Run) -> list[tuple[str, str, int, int]]:
    """The `Progress` events since the last call, without places in the queue."""
    return [tuple(event[:4]) for event in take_events(run)]


def take_places(run: Run) -> list[tuple[str, int | None]]:
    """The names of the `Progress` events since the last call, with places in the queue."""
    return [(event.request_id, event.ahead) for event in take_events(run)]


def take_events(run: Run) -> list[Progress]:
    events = [*run.events, *run.engine.phases.take_changes()]
    run.events = [event for event in events if not isinstance(event, Progress)]
    return [event for event in events if isinstance(event, Progress)]


def add_request(run: Run, name: str, num_prompt: int = 4, **params: object) -> None:
    run.add(request(run.engine, name, range(10, 10 + num_prompt), **params))


def test_a_request_that_starts_at_once_reports_no_phase():
    engine, run = build_with_phases()
    add_request(run, "a")
    run.step(3)
    assert take_progress(run) == []
    run.finish()
    assert take_progress(run) == []
    assert not (engine.phases._reported or engine.phases._changed or engine.phases._prefilling)


def test_a_waiting_request_is_reported_as_queued_once():
    _, run = build_with_phases(max_num_seqs=1)
    add_request(run, "a", max_tokens=8)
    add_request(run, "b", max_tokens=4)
    run.step()
    assert take_progress(run) == [("b", Phase.QUEUED, 0, 4)]
    run.step()
    assert take_progress(run) == []
    run.finish()
    assert take_progress(run) == []


def test_requests_that_wait_are_told_their_places_while_they_change():
    engine, run = build_with_phases(max_num_seqs=1)
    names = [f"waiting{number}" for number in range(NUM_PLACES + 3)]
    for name in ("running", *names):
        add_request(run, name, max_tokens=8)
    run.step()
    assert take_places(run) == [(name, place) for place, name in enumerate(names)]
    run.step()
    assert take_places(run) == []
    engine.abort(names[2], 0.0)
    names.pop(2)
    assert take_places(run) == [(names[place], place) for place in range(2, NUM_PLACES)]
    engine.abort("running", 0.0)
    run.step()
    names.pop(0)
    assert take_places(run) == [(names[place], place) for place in range(NUM_PLACES)]


def test_a_long_prompt_reports_its_progress_in_each_step():
    _, run = build_with_phases()
    add_request(run, "a", num_prompt=40)
    reported = []
    while not run.tokens("a"):
        run.step()
        reported += take_progress(run)
    assert reported == [("a", Phase.PREFILL, 16, 40), ("a", Phase.PREFILL, 32, 40)]


def test_a_pause_and_the_following_decode_are_reported():
    engine, run = build_with_phases()
    add_request(run, "a")
    run.step(3)
    engine.pause("a")
    assert take_progress(run) == [("a", Phase.PAUSED, 6, 7)]
    engine.pause("a")
    run.step()
    assert take_progress(run) == []
    engine.resume("a")
    run.step()
    assert take_progress(run) == [("a", Phase.DECODE, 7, 8)]
    run.finish()
    assert take_progress(run) == []


def test_a_preemption_and_the_following_decode_are_reported():
    engine, run = build_with_phases(
        num_kv_blocks=8, block_size=8, enable_prefix_caching=False, max_num_batched_tokens=16
    )
    add_request(run, "a", num_prompt=8, max_tokens=40)
    add_request(run, "b", num_prompt=8, max_tokens=40)
    reported = []
    for _ in range(200):
        if not engine.has_ready_work:
            break
        run.step()
        reported += take_progress(run)
    phases = [phase for name, phase, _, _ in reported if name == "b"]
    assert phases[0] is Phase.PREEMPTED
    assert phases[-1] is Phase.DECODE
    assert set(phases) == {Phase.PREEMPTED, Phase.PREFILL, Phase.DECODE}
    assert all(done <= total for _, _, done, total in reported)
    assert [name for name, *_ in reported if name == "a"] == []
    assert not engine.phases._reported


def test_ended_requests_are_forgotten_in_any_phase():
    engine, run = build_with_phases(max_num_seqs=1)
    for name in ("a", "b", "c"):
        add_request(run, name, num_prompt=40)
    run.step()
    assert {name for name, *_ in take_progress(run)} == {"a", "b", "c"}
    for name in ("a", "b", "c"):
        engine.abort(name, 0.0)
    assert take_progress(run) == []
    assert not (engine.phases._reported or engine.phases._prefilling)


def test_without_phases_nothing_is_recorded():
    engine = build(tiny("Llama"))
    run = Run(engine)
    add_request(run, "a")
    run.step()
    assert not engine.scheduler.queues._changed
    assert any(isinstance(event, TokenDelta) for event in run.events)


def test_a_request_that_gave_up_its_seat_is_reported_as_queued():
    engine, run = build_with_phases(max_num_seqs=2, scheduling_policy="fair")
    for name in ("a", "b"):
        add_request(run, name)
    run.step(3)
    take_progress(run)
    run.add(replace(request(engine, "c", range(3, 9), max_tokens=2), account="other"))
    run.step()
    assert take_progress(run) == [("b", Phase.QUEUED, 6, 7)]
    run.step(2)
    assert take_progress(run) == [("b", Phase.DECODE, 7, 8)]
