"""The figures of the benchmark `streams`, computed from the counts; the verdicts on limits; and the JSON."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from benchmarks.limits import Limit, Verdict, limits
from benchmarks.streams.cells import Cell
from benchmarks.streams.histogram import Histogram

Run = dict[str, float]
FAULTS = ("lost", "doubled", "wrong")
PLAIN = {
    "resumable": "sse",
    "resumable-saturated": "sse-saturated",
    "ws-resumable": "ws",
    "ws-resumable-saturated": "ws-saturated",
    "responses": "sse",
    "responses-saturated": "sse-saturated",
    "messages": "sse",
    "messages-saturated": "sse-saturated",
}
"""The cells of resumable streams and of other APIs, and the plain ones that they are compared with."""
# With fewer, the cost per event or stream is mostly that of the server itself, and percentiles are random.
LEAST_EVENTS, LEAST_STREAMS = 5000, 32
TOO_SMALL = f"too small to judge (fewer than {LEAST_EVENTS:,} events or {LEAST_STREAMS} streams)"


class Window(NamedTuple):
    """A measured interval: the server's gauges at both ends, and the records of each client process in between."""

    before: Mapping[str, Any]
    after: Mapping[str, Any]
    clients_before: Sequence[Mapping[str, Any]]
    clients: Sequence[Mapping[str, Any]]

    @property
    def seconds(self) -> float:
        """The length of the interval."""
        return self._spent("time")

    def count(self, name: str, groups: Sequence[str] | None = None) -> int:
        """Return `events`, `tokens` or `bytes` of all clients, or of some groups."""
        return sum(
            found[name]
            for client in self.clients
            for group, found in client["groups"].items()
            if groups is None or group in groups
        )

    def times(self, name: str, groups: Sequence[str] | None = None) -> Histogram:
        """Return `ages` or `gaps` of all clients, or of some groups."""
        return Histogram.merge(
            Histogram.from_json(found[name])
            for client in self.clients
            for group, found in client["groups"].items()
            if groups is None or group in groups
        )

    def figures(self, groups: Sequence[str] | None = None) -> Run:
        """Return the figures: times in milliseconds, CPU in microseconds, rates per second.

        Ages and gaps are those of `groups`, if given; all other figures are of all clients.
        """
        num_events, num_tokens = max(self.count("events"), 1), max(self.count("tokens"), 1)
        source_s, ages, gaps = self._spent("source_s"), self.times("ages", groups), self.times("gaps", groups)
        clients_s = [
            after["cpu_s"] - before["cpu_s"] for before, after in zip(self.clients_before, self.clients, strict=True)
        ]
        return {
            "seconds": self.seconds,
            "events": self.count("events"),
            "tokens": self.count("tokens"),
            "events_per_s": num_events / self.seconds,
            "bytes_per_event": self.count("bytes") / num_events,
            "us_per_event": 1e6 * (self._spent("process_s") - source_s) / num_events,
            "loop_us_per_event": 1e6 * self._spent("loop_s") / num_events,
            "source_us_per_token": 1e6 * source_s / num_tokens,
            "server_cores": self._spent("process_s") / self.seconds,
            "server_waited": self._spent("waited_s") / self.seconds,
            "busiest_client_cores": max(clients_s) / self.seconds,
            "age_p50_ms": 1e3 * ages.percentile(0.5),
            "age_p99_ms": 1e3 * ages.percentile(0.99),
            "gap_p50_ms": 1e3 * gaps.percentile(0.5),
            "gap_p99_ms": 1e3 * gaps.percentile(0.99),
            "switches_per_s": (self._spent("switches") + self._spent("forced_switches")) / self.seconds,
        }

    def _spent(self, name: str) -> float:
        return float(self.after[name] - self.before[name])


def lag_figures(lags: Histogram) -> Run:
    """Return the lag of the loop's timer, in milliseconds."""
    return {
        "lag_p50_ms": 1e3 * lags.percentile(0.5),
        "lag_p99_ms": 1e3 * lags.percentile(0.99),
        "lag_max_ms": 1e3 * lags.longest,
    }


def faults(made: Mapping[str, int], streams: Mapping[str, Sequence[int]]) -> Run:
    """Compare the generated tokens with the received ones, `{stream: [last number, lost, doubled, wrong]}`."""
    missing = sum(made.get(stream, found[0]) - found[0] for stream, found in streams.items())
    lost, doubled, wrong = (sum(found[index] for found in streams.values()) for index in (1, 2, 3))
    return {"lost": missing + lost, "doubled": doubled, "wrong": wrong}


@dataclass(slots=True)
class CellFigures:
    """One cell and the figures of each of its runs."""

    cell: Cell
    runs: list[Run] = field(default_factory=list)

    def values(self, figure: str) -> list[float]:
        """Return a figure of each run that has it."""
        return [run[figure] for run in self.runs if figure in run]

    def median(self, figure: str) -> float:
        """Return the median of a figure, NaN if no run has it."""
        return statistics.median(self.values(figure) or [math.nan])

    @property
    def is_too_small(self) -> bool:
        """Whether costs cannot be judged; lost, doubled and wrong tokens always can."""
        return self.median("events") < LEAST_EVENTS or self.cell.num_streams < LEAST_STREAMS

    def verdicts(self) -> Iterator[Verdict]:
        """Yield the verdicts on this cell's limits, and on lost, doubled and wrong tokens in any run."""
        for figure, limit in limits_of(self.cell.name).items():
            if self.values(figure):
                yield Verdict(limit, self.median(figure), excuse=TOO_SMALL if self.is_too_small else "")
        for fault in FAULTS:
            if values := self.values(fault):
                yield Verdict(limits("streams")[fault], max(values), self.cell.name)


@dataclass(slots=True)
class Figures:
    """One run of the command: cells so far, failures, and a description of the run."""

    about: Mapping[str, object]
    cells: list[CellFigures] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)

    def cell(self, name: str) -> CellFigures | None:
        """Return a measured cell by name."""
        return next((found for found in self.cells if found.cell.name == name and found.runs), None)

    def verdicts(self) -> list[Verdict]:
        """Return the verdicts on all measured cells."""
        return [*(verdict for found in self.cells for verdict in found.verdicts()), *self._compared()]

    def _compared(self) -> Iterator[Verdict]:
        """Yield the verdicts on what other streams cost beside plain ones of the same rounds."""
        for name, plain in PLAIN.items():
            found, other = self.cell(name), self.cell(plain)
            if found is None or other is None:
                continue
            pairs = zip(found.values("us_per_event"), other.values("us_per_event"), strict=False)
            excuse = TOO_SMALL if found.is_too_small or other.is_too_small else ""
            limit = limits("streams")[f"{name} times_plain"]
            yield Verdict(limit, statistics.median(cost / plain_cost for cost, plain_cost in pairs), excuse=excuse)

    def to_json(self) -> dict[str, object]:
        """Return everything as JSON."""
        return {
            "benchmark": "streams",
            **self.about,
            "cells": [
                {
                    "name": each.cell.name,
                    "title": each.cell.title,
                    "serve": each.cell.serve,
                    "streams": {part.kind: part.num_streams for part in each.cell.parts},
                    "rate": each.cell.rate,
                    "runs": each.runs,
                }
                for each in self.cells
            ],
            "verdicts": [_verdict_json(verdict) for verdict in self.verdicts()],
            "failures": self.failures,
        }


def limits_of(cell: str) -> dict[str, Limit]:
    """Return the limits of a cell, by figure."""
    names = {name: name.partition(" ") for name in limits("streams")}
    return {figure: limits("streams")[name] for name, (of, _, figure) in names.items() if of == cell and figure}


def _verdict_json(verdict: Verdict) -> dict[str, object]:
    limit = verdict.limit
    cell, _, figure = f"{verdict.what} {limit.name}".strip().partition(" ")
    is_met = None if verdict.excuse else verdict.is_met
    about = {"cell": cell, "figure": figure, "most": limit.value, "unit": limit.unit}
    return {**about, "value": verdict.figure, "is_met": is_met}
