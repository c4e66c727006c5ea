"""The server beside its watchers: what they cost is counted, and what they received."""

from collections import Counter
from pathlib import Path

import pytest

from benchmarks.live import served
from benchmarks.live.served import CHROMIUM, NOBODY, STALLED, WATCHER, WATCHERS, Pair, Turn, available, measure, order
from benchmarks.live.spent import Spent
from benchmarks.live.watching import Watched

KINDS = [NOBODY, WATCHER, STALLED, WATCHERS]


def turn(engine_s: float, loop_s: float, num_messages: int = 0, num_tokens: int = 100) -> Turn:
    """A turn of ten seconds, and those who have watched for twenty."""
    watched = Watched(2 * num_messages, 2000 * num_messages, 200, 0.8, 20.0) if num_messages else Watched()
    return Turn(Spent(engine_s, loop_s, 0.5), num_tokens, 10.0, 5.0, watched)


def test_what_a_pair_compares_are_times_for_a_token():
    pair = Pair([turn(2.0, 0.5, 90), turn(2.2, 0.7, 110)], [turn(2.0, 0.5), turn(2.0, 0.5)])
    assert pair.more("engine_s") == pytest.approx(0.05)
    assert pair.more("engine_s", "loop_s") == pytest.approx(0.08)
    assert pair.message_ms == pytest.approx(1.0)
    twice = Pair([turn(4.2, 1.2, 200, num_tokens=200)], [turn(4.0, 1.0, num_tokens=200), turn(2.0, 0.5)])
    assert twice.more("engine_s") == pytest.approx(0.05)
    assert twice.message_ms == pytest.approx(1.0)
    assert Pair([turn(2.0, 0.5)], [turn(2.0, 0.5)]).message_ms == 0


def test_rates_are_of_one_watcher():
    found = served.Served(2, [Pair([turn(2.0, 0.5, 200)], [turn(2.0, 0.5)])])
    assert found.bytes_per_s == [10_000]
    assert found.encoding_ms == [5.0] and found.reading_ms == [2.0]
    assert found.token_us == [25_000]


def test_in_each_round_every_kind_is_as_early_as_late_and_in_a_repeat_at_every_place():
    rounds = [order(KINDS, number) for number in range(len(KINDS))]
    for turns in rounds:
        places = {kind: [place for place, each in enumerate(turns) if each == kind] for kind in KINDS}
        assert {sum(each) for each in places.values()} == {len(turns) - 1}
    for at_one_place in zip(*rounds, strict=True):
        assert Counter(at_one_place) == Counter(KINDS)


def test_without_a_chromium_it_is_left_out(monkeypatch):
    monkeypatch.setattr(served, "find_chromium", lambda: None)
    assert available([WATCHER, CHROMIUM]) == [WATCHER]
    monkeypatch.setattr(served, "find_chromium", lambda: "chromium")
    assert available([WATCHER, CHROMIUM]) == [WATCHER, CHROMIUM]


@pytest.mark.long
def test_a_server_is_measured_beside_each_kind_of_watchers(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(served, "NUM_STREAMS", 2)
    monkeypatch.setattr(served, "NUM_NEW", 20)
    monkeypatch.setattr(served, "order", lambda kinds, number: kinds)
    names = available([WATCHERS, CHROMIUM])
    found = measure(names, 1, tmp_path)
    assert list(found) == names
    for one in found.values():
        (on,), (off,) = one.pairs[0]
        assert min(*on.spent, *off.spent[:2], on.num_tokens, off.num_tokens, on.p99_ms, off.p99_ms) > 0
        assert off.watched.num_messages == 0
    on, _ = found[WATCHERS].watched
    assert found[WATCHERS].reading_ms[0] > 0
    assert on.watched.num_pictures > 0 and on.watched.num_messages > on.watched.num_pictures
