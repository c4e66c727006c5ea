"""Tables, figures and verdicts of what was measured."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from app.loadgen.table import table
from app.observe.terminal import Terminal
from benchmarks.figures import spread
from benchmarks.limits import Verdict, judge
from benchmarks.live.engine_cells import Found
from benchmarks.live.served import STALLED, WATCHER, WATCHERS, Repeat, Served

ENGINE = "processor time of the engine thread for a token, more"
BOTH = "processor time of engine thread and event loop for a token, more"
MESSAGE = "processor time of the event loop for a message"
STALLED_MORE = "processor time beside a stalled watcher, more than beside one that reads"

FIGURES: Mapping[str, Callable[[Repeat], float]] = {
    ENGINE: lambda repeat: repeat.more("engine_s"),
    BOTH: lambda repeat: repeat.more("engine_s", "loop_s"),
    MESSAGE: lambda repeat: repeat.message_ms,
}
JUDGED = {WATCHER: (BOTH, MESSAGE), WATCHERS: (ENGINE, MESSAGE), STALLED: (BOTH,)}
"""What is required beside whom; beside a page that is drawn nothing is."""


def engine_table(found: Mapping[str, Found], terminal: Terminal) -> list[str]:
    """Return the figures of each cell, a line for each."""
    head = ["", "more, %", "a token, unwatched, µs", "a picture, ms", "pictures a second"]
    rows = [
        [name, _percent(one.shares), spread(one.token_us), spread(one.picture_ms), f"{one.rate:.1f}"]
        for name, one in found.items()
    ]
    return table(terminal, head, rows)


def served_table(found: Mapping[str, Served], terminal: Terminal) -> list[str]:
    """Return the figures beside each kind of watchers, a line for each."""
    head = ["", "more, %", "engine, %", "loop, %", "a token, unwatched, µs", "loop, ms a message"]
    head += ["encoder, ms a picture", "KB a second", "p99 between tokens, ms", "unwatched"]
    return table(terminal, head, [_row(*each) for each in found.items()])


def engine_verdicts(found: Mapping[str, Found]) -> dict[str, Verdict]:
    """Judge the medians of the cells."""
    return {name: judge("live", ENGINE, statistics.median(one.shares), name) for name, one in found.items()}


def served_verdicts(found: Mapping[str, Served]) -> Iterator[Verdict]:
    """Yield the verdicts on the medians beside watchers."""
    for name, limits in JUDGED.items():
        for limit in limits if name in found else ():
            figure = statistics.median(map(FIGURES[limit], found[name].repeats))
            yield judge("live", limit, figure, name)
    if STALLED in found and WATCHER in found:
        pairs = zip(found[STALLED].repeats, found[WATCHER].repeats, strict=True)
        yield judge(
            "live", STALLED_MORE, statistics.median(FIGURES[BOTH](one) - FIGURES[BOTH](two) for one, two in pairs)
        )


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
        "token_us": found.token_us,
        "picture_ms": statistics.median(found.picture_ms) if found.pictures else None,
        "pictures_per_second": found.rate,
        "is_met": verdict.is_met,
    }


def served_json(found: Served) -> dict[str, Any]:
    """Return the figures beside some watchers: of each repeat, and of each turn."""
    return {
        "more": [*map(FIGURES[BOTH], found.repeats)],
        "engine_more": [*map(FIGURES[ENGINE], found.repeats)],
        "loop_more": [repeat.more("loop_s") for repeat in found.repeats],
        "token_us": found.token_us,
        "message_ms": [*map(FIGURES[MESSAGE], found.repeats)],
        "encoding_ms": found.encoding_ms,
        "reading_ms": found.reading_ms,
        "bytes_per_second": found.bytes_per_s,
        "p99_ms": [turn.p99_ms for turn in found.watched],
        "p99_unwatched_ms": [turn.p99_ms for turn in found.unwatched],
    }


def _row(name: str, found: Served) -> list[str]:
    reads = MESSAGE in JUDGED.get(name, ())
    return [
        name,
        *(
            _percent([repeat.more(*fields) for repeat in found.repeats])
            for fields in (("engine_s", "loop_s"), ("engine_s",), ("loop_s",))
        ),
        spread(found.token_us),
        spread([repeat.message_ms for repeat in found.repeats if reads]),
        spread(found.encoding_ms),
        spread([rate / 1000 for rate in found.bytes_per_s if reads]),
        spread([turn.p99_ms for turn in found.watched]),
        spread([turn.p99_ms for turn in found.unwatched]),
    ]


def _percent(shares: list[float]) -> str:
    return spread([100 * share for share in shares])
