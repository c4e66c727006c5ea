"""The figures of one run, by the definitions of vLLM's `vllm bench serve`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from itertools import accumulate
from typing import Any, NamedTuple

from app.loadgen.answer import Answer
from app.loadgen.load_run import Run

MS = 1e3
KINDS = {"ttft": "time to first token", "tpot": "time per output token", "itl": "between chunks", "e2e": "end to end"}
"""The measured times of answers, with their names in reports; all in milliseconds."""


class Spread(NamedTuple):
    """A distribution in milliseconds."""

    mean: float
    p50: float
    p95: float
    p99: float


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of one run. Only completed answers count for times, tokens and rates; times are in seconds.

    Attributes:
        rate: requests per second that were offered; infinity is all at once.
        seconds: from the first request to the end of the last answer.
        requests_per_s, output_per_s, total_per_s: completed requests, their output tokens, and all their tokens.
        held: number of requests that `--max-concurrency` delayed.
        peak: the most requests that were open at the same time, failed and cancelled ones included.
        cached_tokens: those of the prompts' tokens that the server had in its prefix cache.
        cancelled_tokens: tokens of the answers that this client cancelled.
        has_usage: whether the server counted the tokens; otherwise chunks are counted, and no prompt tokens.
        values: all measured values in milliseconds, sorted, by the keys of KINDS.
        errors: number of failures by name; `first_error` is the message of the first one.
        late_p99_ms: how late this client sent requests.
        connect_p99_ms: how long it took to connect.
        client_share: share of a core that this client used.
    """

    rate: float
    seconds: float
    requests_per_s: float
    output_per_s: float
    total_per_s: float
    completed: int
    failed: int
    cancelled: int
    held: int
    peak: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    cancelled_tokens: int
    has_usage: bool
    values: dict[str, list[float]]
    errors: dict[str, int]
    first_error: str
    late_p99_ms: float
    connect_p99_ms: float
    client_share: float

    def spread(self, kind: str) -> Spread | None:
        """Return the distribution of one of KINDS; None if there is no value."""
        if not (values := self.values[kind]):
            return None
        return Spread(sum(values) / len(values), *(percentile(values, share) for share in (0.5, 0.95, 0.99)))

    def to_json(self) -> dict[str, Any]:
        """Return the figures, with the distributions in place of all values; an infinite rate is the text `inf`."""
        known = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "values"}
        spreads = {f"{kind}_ms": found._asdict() if (found := self.spread(kind)) else None for kind in KINDS}
        return known | {"rate": rate_text(self.rate)} | spreads


def figures_of(run: Run, rate: float) -> Figures:
    """Return the figures of a run; open requests are not counted."""
    completed, failed, cancelled = (
        [answer for answer in run.answers if answer.status == status] for status in ("completed", "failed", "cancelled")
    )
    prompt_tokens = sum(answer.prompt_tokens or 0 for answer in completed)
    output_tokens = sum(answer.num_output for answer in completed)
    seconds = run.ended - run.began
    per_s = 1 / seconds if seconds else 0.0
    connects = _sorted_ms(answer.connected - answer.sent for answer in run.answers if answer.connected is not None)
    return Figures(
        rate=rate,
        seconds=seconds,
        requests_per_s=len(completed) * per_s,
        output_per_s=output_tokens * per_s,
        total_per_s=(prompt_tokens + output_tokens) * per_s,
        completed=len(completed),
        failed=len(failed),
        cancelled=len(cancelled),
        held=sum(answer.ready > answer.due for answer in run.answers),
        peak=peak(run.answers),
        prompt_tokens=prompt_tokens,
        cached_tokens=sum(answer.cached_tokens for answer in completed),
        output_tokens=output_tokens,
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
        connect_p99_ms=percentile(connects, 0.99),
        client_share=run.cpu_s * per_s,
    )


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the quantile `share` (0..1) of sorted values, interpolated linearly; 0 if there are no values."""
    if not ordered:
        return 0.0
    position = share * (len(ordered) - 1)
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def peak(answers: Iterable[Answer]) -> int:
    """Return the most requests that were open at the same time; one that begins as another ends does not overlap it."""
    ended = [answer for answer in answers if answer.status != "open"]
    changes = sorted([(answer.sent, 1) for answer in ended] + [(answer.ended, -1) for answer in ended])
    return max(accumulate((change for _, change in changes), initial=0))


def rate_text(rate: float) -> str:
    """Return a rate as the option `--rate` takes it."""
    return f"{rate:g}"


def run_title(found: Figures) -> str:
    """Return the name of a run in reports."""
    if not math.isinf(found.rate):
        return f"{rate_text(found.rate)} requests/s"
    return f"{found.peak:,} at a time" if found.held else "all at once"


def _sorted_ms(seconds: Iterable[float | None]) -> list[float]:
    return sorted(MS * value for value in seconds if value is not None)
