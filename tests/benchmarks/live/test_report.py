"""What is required beside whom, and what is shown of it."""

import pytest

from app.observe.terminal import Terminal
from benchmarks.limits import limits
from benchmarks.live.report import (
    BOTH,
    ENGINE,
    MESSAGE,
    STALLED_MORE,
    faults,
    served_json,
    served_table,
    served_verdicts,
)
from benchmarks.live.served import CHROMIUM, NUM_WATCHERS, STALLED, WATCHER, WATCHERS, Pair, Served, Turn
from benchmarks.live.spent import Spent
from benchmarks.live.unit_costs import UnitCosts
from benchmarks.live.watching import Watched

OFF = Turn(Spent(8.0, 2.0), 1000.0, 10.0, 3.0, Watched())
NAMES = (WATCHER, WATCHERS, STALLED, CHROMIUM)


def beside(name: str, engine_s: float = 8.0, loop_s: float = 2.0, num_messages: int = 100) -> Served:
    """One round beside somebody who took so much time of the server, where a hundred pictures were made."""
    watched = Watched() if name == CHROMIUM else Watched(num_messages, 20_000 * num_messages, 100, 1.0, 10.0)
    on = Turn(Spent(engine_s, loop_s, 0.1), 1000.0, 10.0, 4.0, watched)
    return Served(NUM_WATCHERS.get(name, 1), [Pair([on, on], [OFF, OFF])])


def all_beside(**changed: Served) -> dict[str, Served]:
    messages = {WATCHER: 100, WATCHERS: 1600, STALLED: 2, CHROMIUM: 0}
    return {name: beside(name, num_messages=number) for name, number in messages.items()} | changed


def missed(found: dict[str, Served]) -> list[tuple[str, str]]:
    return [(verdict.what, verdict.limit.name) for verdict in served_verdicts(found) if verdict.is_missed]


def test_every_limit_is_judged_and_a_page_that_is_drawn_has_none():
    verdicts = [*served_verdicts(all_beside())]
    assert {verdict.limit.name for verdict in verdicts} == set(limits("live"))
    assert CHROMIUM not in {verdict.what for verdict in verdicts}
    assert missed(all_beside()) == []


@pytest.mark.parametrize(("name", "engine_s", "loop_s", "num_messages", "limit"), [
    (WATCHER, 8.0, 2.15, 200, BOTH), (WATCHER, 8.15, 2.0, 200, BOTH), (WATCHER, 7.8, 2.2, 100, MESSAGE),
    (WATCHERS, 8.1, 2.0, 1600, ENGINE), (WATCHERS, 8.0, 4.0, 1600, MESSAGE), (STALLED, 8.0, 2.15, 2, BOTH),
])  # fmt: skip
def test_what_costs_too_much_is_missed(name: str, engine_s: float, loop_s: float, num_messages: int, limit: str):
    found = all_beside(**{name: beside(name, engine_s, loop_s, num_messages)})
    assert (name, limit) in missed(found)


def test_a_stalled_watcher_must_not_cost_more_than_one_that_reads():
    cheap, dear = beside(WATCHER, 7.95), beside(STALLED, 8.09, num_messages=2)
    assert missed({WATCHER: cheap, STALLED: dear}) == [("", STALLED_MORE)]


def test_one_that_misses_nothing_was_not_stalled():
    assert faults(all_beside()) == []
    assert len(faults(all_beside(**{STALLED: beside(STALLED, num_messages=100)}))) == 1
    assert faults({}) == []


def test_what_is_not_known_is_not_shown():
    found = all_beside()
    costs = UnitCosts(2.0, {WATCHER: 1.0, WATCHERS: 8.0, STALLED: 1.0}, {})
    head, *rows = served_table(found, costs, Terminal())
    assert head.split("  ")[-1] == "unwatched" and [row.split("  ")[0] for row in rows] == [*NAMES]
    assert "4 (4-4)" in rows[0] and "-" not in rows[0].split()
    assert rows[3].split().count("-") == 4
    written = served_json(WATCHER, found[WATCHER], costs)
    assert written["bytes_per_second"] == [200_000, 200_000]
    assert written["medians"]["more"] == {"median": 0.0, "low": 0.0, "high": 0.0}
    # A hundred pictures of 3 ms beside a thousand tokens of 10 ms.
    assert written["counted"] == pytest.approx(0.03)
    assert served_json(CHROMIUM, found[CHROMIUM], costs)["counted"] is None
