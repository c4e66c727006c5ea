"""The server beside its watchers: what they cost is counted, and what they received."""

from pathlib import Path

import pytest

from benchmarks.live import served
from benchmarks.live.served import CHROMIUM, WATCHER, WATCHERS, Repeat, Spent, Turn, available, measure
from benchmarks.live.watching import Watched


def turn(engine_s: float, loop_s: float, num_messages: int = 0) -> Turn:
    watched = Watched(num_messages, 1000 * num_messages, 100, 0.4) if num_messages else Watched()
    return Turn(Spent(engine_s, loop_s, 0.5), 10.0, 5.0, watched)


def test_what_a_repeat_compares_are_sums():
    repeat = Repeat([turn(2.0, 0.5, 90), turn(2.2, 0.7, 110)], [turn(2.0, 0.5), turn(2.0, 0.5)])
    assert repeat.more("engine_s") == pytest.approx(0.05)
    assert repeat.more("engine_s", "loop_s") == pytest.approx(0.08)
    assert repeat.message_ms == pytest.approx(1.0)
    assert Repeat([turn(2.0, 0.5)], [turn(2.0, 0.5)]).message_ms == 0


def test_rates_are_of_one_watcher():
    found = served.Served(2, [Repeat([turn(2.0, 0.5, 200)], [turn(2.0, 0.5)])])
    assert found.bytes_per_s == [10_000]
    assert found.encoding_ms == [5.0] and found.reading_ms == [2.0]


def test_without_a_chromium_it_is_left_out(monkeypatch):
    monkeypatch.setattr(served, "find_chromium", lambda: None)
    assert available([WATCHER, CHROMIUM]) == [WATCHER]
    monkeypatch.setattr(served, "find_chromium", lambda: "chromium")
    assert available([WATCHER, CHROMIUM]) == [WATCHER, CHROMIUM]


def test_a_server_is_measured_beside_each_kind_of_watchers(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(served, "ORDER", (True, False))
    monkeypatch.setattr(served, "NUM_STREAMS", 2)
    monkeypatch.setattr(served, "NUM_NEW", 500)
    names = available([WATCHERS, CHROMIUM])
    found = measure(names, 1, tmp_path)
    assert list(found) == names
    for one in found.values():
        ((on,), (off,)) = one.repeats[0]
        assert min(*on.spent, *off.spent[:2], on.p99_ms, off.p99_ms) > 0
        assert off.watched.num_messages == 0
    (on,) = found[WATCHERS].watched
    assert found[WATCHERS].reading_ms[0] > 0
    assert on.watched.num_pictures > 0 and on.watched.num_messages > on.watched.num_pictures
