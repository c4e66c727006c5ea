"""What a server's threads have spent is told apart by their names."""

from benchmarks.live import spent
from benchmarks.live.spent import Spent
from benchmarks.threads import ThreadTime


def test_the_threads_are_told_apart_by_their_names(monkeypatch):
    found = [
        ThreadTime("quire", True, 2.0, 9.0), ThreadTime("quire-engine", False, 3.0, 9.0),
        ThreadTime("quire-live_0", False, 0.5, 9.0), ThreadTime("quire-text_0", False, 7.0, 9.0),
    ]  # fmt: skip
    monkeypatch.setattr(spent, "threads_of", lambda pid: iter(found))
    assert Spent.by(1) == Spent(3.0, 2.0, 0.5)


def test_times_are_compared_with_those_before():
    assert Spent(3.0, 2.0, 0.5).since(Spent(1.0, 0.5, 0.5)) == Spent(2.0, 1.5, 0.0)
