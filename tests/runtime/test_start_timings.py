"""Phases follow each other within a thread, and the table shows them on one scale."""

import threading

from app.runtime.start_timings import BAR_WIDTH, Phase, StartTimings, process_age
from tests.fakes import FakeClock


def timings(clock: FakeClock, age_s: float = 0.0) -> StartTimings:
    """StartTimings of a process that started `age_s` ago."""
    return StartTimings(age_s, clock)


def test_the_first_phase_begins_with_the_process_and_each_next_at_the_end_of_the_last():
    clock = FakeClock()
    made = timings(clock, age_s=0.5)
    clock.advance(1.0)
    made.end("one")
    clock.advance(2.0)
    made.end("two")
    assert made.phases() == [Phase("main", "one", 0.0, 1.5), Phase("main", "two", 1.5, 3.5)]
    assert made.now() == 3.5


def test_each_thread_has_its_own_phases():
    clock = FakeClock()
    made = timings(clock)
    clock.advance(1.0)

    def work() -> None:
        made.begin()
        clock.advance(2.0)
        made.end("loading")

    thread = threading.Thread(target=work, name="quire-engine")
    thread.start()
    thread.join()
    clock.advance(1.0)
    made.end("serving")
    assert made.phases() == [Phase("main", "serving", 0.0, 4.0), Phase("engine", "loading", 1.0, 3.0)]


def test_the_table_has_a_line_and_a_bar_for_each_phase():
    clock = FakeClock()
    made = timings(clock)
    clock.advance(1.0)
    made.end("short")
    made.end("nothing")
    clock.advance(3.0)
    made.end("rather long")
    head, short, nothing, long = made.lines()
    assert "4.00 s" in head
    assert "1.000 s" in short and short.endswith("  " + "█" * (BAR_WIDTH // 4))
    assert nothing.endswith(" ▏"), "what took no time is shown where it was"
    assert "3.000 s" in long and long.endswith(" " * (BAR_WIDTH // 4) + "█" * (3 * BAR_WIDTH // 4))
    assert long.index("█") == nothing.index("▏") == short.rindex("█") + 1


def test_without_phases_the_table_is_empty():
    assert len(timings(FakeClock()).lines()) == 1


def test_the_age_of_the_process_grows():
    first = process_age()
    assert 0 < first <= process_age()


def test_counts_have_the_seconds_of_each_phase():
    clock = FakeClock()
    timings = StartTimings(1.0, clock)
    for name in ("load", "open", "load"):
        clock.advance(2.0)
        timings.end(name)
    assert timings.counts.seconds == {"load": 3.0 + 2.0, "open": 2.0}
