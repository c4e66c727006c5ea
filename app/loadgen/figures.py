"""The figures of one run, by the definitions of vLLM's `vllm bench serve`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from app.loadgen.answer import Answer
from app.loadgen.load_run import Run

MS = 1e3
KINDS = {
    "ttft": "time to first token",
    "tpot": "time per output token",
    "itl": "between chunks",
    "e2e": "end to end",
}
"""What is measured of answers, with its name for people; all in milliseconds."""


class Spread(NamedTuple):
    """A distribution in milliseconds."""

    mean: float
    p50: float
    p95: float
    p99: float


@dataclass(frozen=True, slots=True)
class Figures:
    """What one run has shown. Only completed answers count for times and rates; seconds where no unit is named.

    Attributes:
        rate: requests per second that were offered; infinity is all at once.
        seconds: from the first request to the end of the last answer.
        held: requests that waited for a place under `--max-concurrency`.
        peak: most requests open at once, failed and cancelled ones too.
        cancelled_tokens: tokens of answers that this client has cancelled.
        has_usage: the server has counted the tokens; otherwise they are chunks, and prompts have none.
        values: every single value, sorted, in milliseconds, by the names of KINDS.
        errors: failures by their name; `first_error` is the first one's message.
        late_p99_ms: how late this client has sent.
        connect_p99_ms: how long connections took to open.
        client_share: share of a core that this client has used.
    """

    rate: float
    seconds: float
    completed: int
    failed: int
    cancelled: int
    held: int
    peak: int
    prompt_tokens: int
    output_tokens: int
    cancelled_tokens: int
    has_usage: bool
    values: dict[str, list[float]]
    errors: dict[str, int]
    first_error: str
    late_p99_ms: float
    connect_p99_ms: float
    client_share: float

    @property
    def requests_per_s(self) -> float:
        """Completed requests per second."""
        return self.completed / self.seconds if self.seconds else 0.0

    @property
    def output_per_s(self) -> float:
        """New tokens of completed answers per second."""
        return self.output_tokens / self.seconds if self.seconds else 0.0

    @property
    def total_per_s(self) -> float:
        """Tokens of completed requests per second, in and out."""
        return (self.prompt_tokens + self.output_tokens) / self.seconds if self.seconds else 0.0

    def spread(self, kind: str) -> Spread | None:
        """Return the distribution of one of KINDS; None where there is no value."""
        if not (values := self.values[kind]):
            return None
        return Spread(sum(values) / len(values), *(percentile(values, share) for share in (0.5, 0.95, 0.99)))

    def to_json(self) -> dict[str, Any]:
        """Return all but the single values; an infinite rate is the text `inf`."""
        known = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "values"}
        rates = {name: getattr(self, name) for name in ("requests_per_s", "output_per_s", "total_per_s")}
        spreads = {f"{kind}_ms": found._asdict() if (found := self.spread(kind)) else None for kind in KINDS}
        return known | {"rate": rate_text(self.rate)} | rates | spreads


def figures_of(run: Run, rate: float) -> Figures:
    """Return the figures of a run; requests that are still open count for nothing."""
    ended = {status: [each for each in run.answers if each.status == status] for status in ("completed", "cancelled")}
    completed, cancelled = ended["completed"], ended["cancelled"]
    failed = [answer for answer in run.answers if answer.status == "failed"]
    seconds = run.ended - run.began
    return Figures(
        rate=rate,
        seconds=seconds,
        completed=len(completed),
        failed=len(failed),
        cancelled=len(cancelled),
        held=sum(answer.ready > answer.due for answer in run.answers),
        peak=peak(run.answers),
        prompt_tokens=sum(answer.prompt_tokens or 0 for answer in completed),
        output_tokens=sum(answer.num_output for answer in completed),
        cancelled_tokens=sum(answer.num_output for answer in cancelled),
        has_usage=bool(completed) and all(answer.output_tokens is not None for answer in completed),
        values={
            "ttft": _sorted_ms(answer.ttft for answer in completed),
            "tpot": _sorted_ms(answer.tpot for answer in completed),
            "itl": _sorted_ms(gap for answer in completed for gap in answer.gaps),
            "e2e": _sorted_ms(answer.e2e for answer in completed),
        },
        errors=dict(Counter(answer.error for answer in failed).most_common()),
        first_error=failed[0].message if failed else "",
        late_p99_ms=percentile(_sorted_ms(answer.late for answer in run.answers), 0.99),
        connect_p99_ms=percentile(
            _sorted_ms(answer.connected - answer.sent for answer in run.answers if answer.connected is not None), 0.99
        ),
        client_share=run.cpu_s / seconds if seconds else 0.0,
    )


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the value that `share` (0..1) of sorted values are below, between two of them on the line; 0 of none."""
    if not ordered:
        return 0.0
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def peak(answers: Iterable[Answer]) -> int:
    """Return how many requests were open at once at most; one that ends as another begins is not."""
    ended = [answer for answer in answers if answer.status != "open"]
    changes = sorted([(answer.sent, 1) for answer in ended] + [(answer.ended, -1) for answer in ended])
    most = now = 0
    for _, change in changes:
        now += change
        most = max(most, now)
    return most


def rate_text(rate: float) -> str:
    """Return a rate as the option takes it."""
    return f"{rate:g}"


def run_title(found: Figures) -> str:
    """Return what a run is called."""
    if not math.isinf(found.rate):
        return f"{rate_text(found.rate)} requests/s"
    return f"{found.peak:,} at a time" if found.held else "all at once"


def _sorted_ms(seconds: Iterable[float | None]) -> list[float]:
    return sorted(MS * value for value in seconds if value is not None)
