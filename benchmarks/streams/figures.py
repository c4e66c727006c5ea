"""The figures of the benchmark `streams`: what follows from the counts, how promises are kept, and their JSON."""

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
# Below these a cost for each event or stream is mostly that of the server itself, and its percentiles are chance.
LEAST_EVENTS, LEAST_STREAMS = 5000, 32
TOO_SMALL = f"too small to judge (fewer than {LEAST_EVENTS:,} events or {LEAST_STREAMS} streams)"


class Window(NamedTuple):
    """A stretch of time: the server's gauges at both ends, and what each client process noted in between."""

    before: Mapping[str, Any]
    after: Mapping[str, Any]
    clients_before: Sequence[Mapping[str, Any]]
    clients: Sequence[Mapping[str, Any]]

    @property
    def seconds(self) -> float:
        """How long it was."""
        return self._spent("time")

    def count(self, name: str, crowds: Sequence[str] | None = None) -> int:
        """Return `events`, `tokens` or `bytes` of all clients, or of some crowds."""
        return sum(
            found[name]
            for client in self.clients
            for crowd, found in client["crowds"].items()
            if crowds is None or crowd in crowds
        )

    def times(self, name: str, crowds: Sequence[str] | None = None) -> Histogram:
        """Return `ages` or `gaps` of all clients, or of some crowds."""
        return Histogram.together(
            Histogram.from_json(found[name])
            for client in self.clients
            for crowd, found in client["crowds"].items()
            if crowds is None or crowd in crowds
        )

    def figures(self, crowds: Sequence[str] | None = None) -> Run:
        """Return what the window came to: times in milliseconds, CPU in microseconds, rates per second.

        Ages and gaps are those of some crowds, where they are named; all else is of everybody.
        """
        num_events, num_tokens = max(self.count("events"), 1), max(self.count("tokens"), 1)
        source_s, ages, gaps = self._spent("source_s"), self.times("ages", crowds), self.times("gaps", crowds)
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
    """Return how late the loop came to its timer, in milliseconds."""
    return {
        "lag_p50_ms": 1e3 * lags.percentile(0.5),
        "lag_p99_ms": 1e3 * lags.percentile(0.99),
        "lag_max_ms": 1e3 * lags.longest,
    }


def faults(made: Mapping[str, int], streams: Mapping[str, Sequence[int]]) -> Run:
    """Compare the tokens that were made with those that came: `{stream: [last number, lost, doubled, wrong]}`."""
    missing = sum(made.get(stream, found[0]) - found[0] for stream, found in streams.items())
    lost, doubled, wrong = (sum(found[place] for found in streams.values()) for place in (1, 2, 3))
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
        """Whether its costs say nothing; that a token is lost, doubled or wrong always does."""
        return self.median("events") < LEAST_EVENTS or self.cell.num_streams < LEAST_STREAMS

    def verdicts(self) -> Iterator[Verdict]:
        """Yield what is promised of this cell, and that nothing was lost, doubled or wrong in any run."""
        for figure, limit in limits_of(self.cell.name).items():
            if self.values(figure):
                yield Verdict(limit, self.median(figure), excuse=TOO_SMALL if self.is_too_small else "")
        for fault in FAULTS:
            if values := self.values(fault):
                yield Verdict(limits("streams")[fault], max(values), self.cell.name)


@dataclass(slots=True)
class Figures:
    """One run of the command: cells so far, failures, and what describes the run."""

    about: Mapping[str, object]
    cells: list[CellFigures] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)

    def cell(self, name: str) -> CellFigures | None:
        """Return a measured cell by name."""
        return next((found for found in self.cells if found.cell.name == name and found.runs), None)

    def verdicts(self) -> list[Verdict]:
        """Return all promises about what was measured."""
        return [verdict for found in self.cells for verdict in found.verdicts()]

    def to_json(self) -> dict[str, object]:
        """Return everything, with what follows from it."""
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
            "promises": [_promise(verdict) for verdict in self.verdicts()],
            "failures": self.failures,
        }


def limits_of(cell: str) -> dict[str, Limit]:
    """Return what is promised of a cell, by its figures."""
    names = {name: name.partition(" ") for name in limits("streams")}
    return {figure: limits("streams")[name] for name, (of, _, figure) in names.items() if of == cell and figure}


def _promise(verdict: Verdict) -> dict[str, object]:
    limit = verdict.limit
    cell, _, figure = f"{verdict.what} {limit.name}".strip().partition(" ")
    is_met = None if verdict.excuse else verdict.is_met
    about = {"cell": cell, "figure": figure, "most": limit.value, "unit": limit.unit}
    return {**about, "value": verdict.figure, "is_met": is_met}
