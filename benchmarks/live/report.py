"""Tables, figures and verdicts of what was measured."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from app.loadgen.table import number, table
from app.observe.terminal import Terminal
from benchmarks.figures import spread
from benchmarks.limits import Verdict, judge
from benchmarks.live.engine_cells import Found
from benchmarks.live.median_interval import MedianInterval
from benchmarks.live.served import ENGINE_AND_LOOP, STALLED, WATCHER, WATCHERS, Pair, Served
from benchmarks.live.unit_costs import UnitCosts

ENGINE = "processor time of the engine thread for a token, more"
BOTH = "processor time of engine thread and event loop for a token, more"
MESSAGE = "processor time of the event loop for a message"
STALLED_MORE = "processor time beside a stalled watcher, more than beside one that reads"

FIGURES: Mapping[str, Callable[[Pair], float]] = {
    ENGINE: lambda pair: pair.more("engine_s"),
    BOTH: lambda pair: pair.more(*ENGINE_AND_LOOP),
    MESSAGE: lambda pair: pair.message_ms,
}
THREADS = {"more": ENGINE_AND_LOOP, "engine_more": ("engine_s",), "loop_more": ("loop_s",)}
JUDGED = {WATCHER: (BOTH, MESSAGE), WATCHERS: (ENGINE, MESSAGE), STALLED: (BOTH,)}
"""What is required beside whom; beside a page that is drawn nothing is."""


def engine_table(found: Mapping[str, Found], terminal: Terminal) -> list[str]:
    """Return the figures of each cell, a line for each."""
    head = ["", "more, %", "counted, %", "a token, unwatched, µs", "a picture, ms", "pictures a second"]
    rows = [
        [
            name,
            _percent(one.shares),
            _counted(one.counted),
            spread(one.token_us),
            spread(one.picture_ms),
            f"{one.rate:.1f}",
        ]
        for name, one in found.items()
    ]
    return table(terminal, head, rows)


def served_table(found: Mapping[str, Served], costs: UnitCosts, terminal: Terminal) -> list[str]:
    """Return the figures beside each kind of watchers, a line for each; shares with the interval of their median."""
    head = ["", "more, %", "engine, %", "loop, %", "counted, %", "a token, unwatched, µs", "loop, ms a message"]
    head += ["encoder, ms a picture", "KB a second", "p99 between tokens, ms", "unwatched"]
    return table(terminal, head, [_row(name, one, costs) for name, one in found.items()])


def engine_verdicts(found: Mapping[str, Found]) -> dict[str, Verdict]:
    """Judge the medians of the cells."""
    return {name: judge("live", ENGINE, statistics.median(one.shares), name) for name, one in found.items()}


def served_verdicts(found: Mapping[str, Served]) -> Iterator[Verdict]:
    """Yield the verdicts on the medians beside watchers."""
    for name, limits in JUDGED.items():
        for limit in limits if name in found else ():
            yield judge("live", limit, statistics.median(map(FIGURES[limit], found[name].pairs)), name)
    if more := stalled_more(found):
        yield judge("live", STALLED_MORE, statistics.median(more))


def pool_lines(costs: UnitCosts) -> list[str]:
    """Return what a message takes of the event loop by the size of the pool, a line for each."""
    return [
        f"a pool of {blocks} blocks: {number(spent)} ms of the loop" for blocks, spent in costs.pool_loop_ms.items()
    ]


def pool_verdicts(costs: UnitCosts) -> list[Verdict]:
    """Judge what a message takes of the event loop by the size of the pool."""
    return [judge("live", MESSAGE, spent, f"{blocks} blocks") for blocks, spent in costs.pool_loop_ms.items()]


def stalled_more(found: Mapping[str, Served]) -> list[float]:
    """Return how much more a stalled watcher has cost in each round than one that reads; empty if one is unknown."""
    if not {STALLED, WATCHER} <= {*found}:
        return []
    pairs = zip(found[STALLED].pairs, found[WATCHER].pairs, strict=True)
    return [Pair(stalled.on, reading.on).more(*ENGINE_AND_LOOP) for stalled, reading in pairs]


def faults(found: Mapping[str, Served]) -> list[str]:
    """Return why what was measured tells nothing, a line for each reason."""
    stalled = found[STALLED].watched if STALLED in found else []
    if all(turn.watched.num_messages < turn.watched.num_pictures for turn in stalled):
        return []
    return ["the watcher that reads nothing has received every picture: it has not been stalled"]


def engine_json(found: Found, verdict: Verdict) -> dict[str, Any]:
    """Return the figures of a cell."""
    return {
        "more": found.shares,
        "counted": found.counted,
        "token_us": found.token_us,
        "picture_ms": statistics.median(found.picture_ms) if found.picture_ms else None,
        "pictures_per_second": found.rate,
        "is_met": verdict.is_met,
    }


def counted(name: str, found: Served, costs: UnitCosts) -> float | None:
    """Return the work that is known of, as a share of that for the tokens; None of the page, which is not counted.

    It is what the pictures take with nothing beside, so the measured share should be more.
    """
    if name not in costs.loop_ms:
        return None
    return found.pictures_per_token * (costs.engine_ms + costs.loop_ms[name]) / 1000 / found.token_s


def served_json(name: str, found: Served, costs: UnitCosts) -> dict[str, Any]:
    """Return the figures beside some watchers: of each round, and of each turn."""
    more = {name: [pair.more(*threads) for pair in found.pairs] for name, threads in THREADS.items()}
    return {
        **more,
        "medians": {name: MedianInterval.of(shares)._asdict() for name, shares in more.items()},
        "counted": counted(name, found, costs),
        "token_us": found.token_us,
        "message_ms": [*map(FIGURES[MESSAGE], found.pairs)],
        "encoding_ms": found.encoding_ms,
        "reading_ms": found.reading_ms,
        "bytes_per_second": found.bytes_per_s,
        "p99_ms": [turn.p99_ms for turn in found.watched],
        "p99_unwatched_ms": [turn.p99_ms for turn in found.unwatched],
    }


def _row(name: str, found: Served, costs: UnitCosts) -> list[str]:
    reads, share = MESSAGE in JUDGED.get(name, ()), counted(name, found, costs)
    return [
        name,
        *(str(MedianInterval.of([100 * pair.more(*threads) for pair in found.pairs])) for threads in THREADS.values()),
        _counted(share),
        spread(found.token_us),
        str(MedianInterval.of([pair.message_ms for pair in found.pairs])) if reads else "-",
        spread(found.encoding_ms),
        spread([rate / 1000 for rate in found.bytes_per_s if reads]),
        spread([turn.p99_ms for turn in found.watched]),
        spread([turn.p99_ms for turn in found.unwatched]),
    ]


def _percent(shares: list[float]) -> str:
    return spread([100 * share for share in shares])


def _counted(share: float | None) -> str:
    return "-" if share is None else number(100 * share)
