"""The table of the rows, for the terminal and for docs/benchmarks.md, and what exceeds the limits.

It reads the rows as they are in isolation.json; rows of older files have fewer figures.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from app.loadgen.table import number, table
from app.observe.terminal import own_terminal
from benchmarks.isolation.attack_table import ATTACKS, QUIET
from benchmarks.isolation.watchers import MISSED_NOTHING
from benchmarks.limits import Verdict, conclude, judge, limits

Rounds = Sequence[Mapping[str, Any] | str]
Found = Mapping[str, Mapping[str, Rounds]]
"""The rounds of each row of each model; a row that has failed is a sentence."""
Figures = Mapping[str, float]


class Column(NamedTuple):
    """A figure of a row: its head, the field and the unit that it is written in, and the limit that it is held to."""

    head: str
    field: str
    unit: float = 0.001
    limit: str = ""


NEW = "first token of a new request"
COLUMNS = (
    Column("p99 between tokens, ms", "itl_p99_s"),
    Column("longest", "itl_max_s", limit="longest gap between tokens"),
    Column("`/livez` p99", "livez_p99_s", limit="/livez p99"),
    Column("longest", "livez_max_s", limit="longest answer of /livez"),
    Column("new chat", "chat_s", limit=NEW),
    Column("new schema", "schema_s", limit=NEW),
    Column("embedding", "embedding_s", limit=NEW),
    Column("loop lag p99", "lag_p99_s"),
    Column("memory, MiB", "grown_bytes", 2.0**20, "memory during the attack"),
    Column("kept, MB", "kept_bytes", 1e6, "memory kept after a minute"),
    Column("SIGTERM, s", "exit_s", 1.0, "end after SIGTERM"),
)
_AS_SECONDS = 0.001  # the unit of limits on times is a second
_OF_THE_WORST_ROUND = {"itl_max_s", "livez_max_s", "grown_bytes"}
"""Medians would hide a single stall, and memory that grows from round to round."""
_HARMLESS = {"429": "was refused", MISSED_NOTHING: "stalled nobody"}
"""Answers to an attack that has attacked nothing, and what such an attack did."""


def fault(row: Mapping[str, Any] | str) -> str:
    """Say why a round has measured nothing: it has failed, or the attack has harmed nobody; else ""."""
    if isinstance(row, str):
        return row
    answers = {answer: num for answer, num in row.get("answers", {}).items() if num}
    if not answers or not answers.keys() <= _HARMLESS.keys():
        return ""
    most = max(answers, key=lambda answer: answers[answer])
    return f"the attack {_HARMLESS[most]}: {answers[most]} of {sum(answers.values())} got {most}"


def figures_of(rounds: Rounds) -> Figures:
    """Return the figures of a row from those of its rounds that have measured something; none without a value.

    They are medians; of the longest times, and of memory during the attack, those of the worst round.
    """
    measured = [row for row in rounds if not isinstance(row, str) and not fault(row)]
    found = {}
    for column in COLUMNS:
        values = [row[column.field] for row in measured if row.get(column.field) is not None]
        if values:
            of_all = max if column.field in _OF_THE_WORST_ROUND else statistics.median
            found[column.field] = float(of_all(values))
    return found


def verdicts(found: Figures, quiet: Figures, what: str) -> list[Verdict]:
    """Hold a row against the limits, and its times between tokens against the quiet row's."""
    allowed = limits("isolation")
    factor, extra = allowed["p99 between tokens, times the quiet one"], allowed["p99 between tokens, beyond that"]
    itl = replace(extra, name="p99 between tokens", value=factor.value * quiet["itl_p99_s"] + extra.value)
    held = [Verdict(itl, found["itl_p99_s"], what)] if "itl_p99_s" in found else []
    for column in COLUMNS:
        if column.limit and column.field in found:
            scale = 1.0 if column.unit == _AS_SECONDS else column.unit
            place = f"{what}, {column.head}" if column.limit == NEW else what
            held.append(judge("isolation", column.limit, found[column.field] / scale, place))
    return held


def report(found: Found) -> int:
    """Print the table and what exceeds the limits or went wrong; return the exit code."""
    rows, held, faults = [], list[Verdict](), list[str]()
    for model, by_name in found.items():
        quiet = figures_of(by_name[QUIET])
        for name, rounds in by_name.items():
            what = f"{model}, {name}"
            failures = [*filter(None, map(fault, rounds))] or ([] if quiet else ["nothing to compare with"])
            if failures:
                faults.append(f"{what}: {failures[0]}")
                continue
            figures = figures_of(rounds)
            held += (here := verdicts(figures, quiet, what))
            word = "MISSED" if any(verdict.is_missed for verdict in here) else ""
            rows.append([f"{model}: {ATTACKS[name].what}", *_cells(figures), word])
    heads = ["one other client", *(column.head.replace("`", "") for column in COLUMNS)]
    print("\n".join(table(own_terminal(), heads, rows)))
    return conclude(held, faults)


def markdown(found: Found) -> str:
    """Return the table of docs/benchmarks.md: a row for each attack, each cell with the figures of all models."""
    heads = ["other client", *(column.head for column in COLUMNS)]
    lines = [heads, ["---", *["---:"] * len(COLUMNS)]]
    for name, attack in ATTACKS.items():
        rounds = [by_name[name] for by_name in found.values() if name in by_name]
        if rounds:
            lines.append([attack.what, *map(", ".join, zip(*map(_cells_of, rounds), strict=True))])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _cells_of(rounds: Rounds) -> list[str]:
    return ["failed"] * len(COLUMNS) if any(map(fault, rounds)) else list(_cells(figures_of(rounds)))


def _cells(figures: Figures) -> Iterator[str]:
    for column in COLUMNS:
        yield number(figures[column.field] / column.unit) if column.field in figures else "-"
