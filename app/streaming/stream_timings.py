"""The times and rates of one stream."""

from __future__ import annotations

from collections import deque
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from app.contract.events import Timings, Usage

MAX_GAPS = 1024


class StreamTimings(NamedTuple):
    """The times and rates that a client gets: times in ms from arrival, rates in tokens per second.

    `itl_p50_ms` is the median time between tokens as they left the mailbox, over the last 1,024 deliveries.
    """

    queue_ms: float
    ttft_ms: float
    prefill_tok_s: float
    decode_tok_s: float
    itl_p50_ms: float


class Stopwatch:
    """Collects the data of `StreamTimings`. Loop only."""

    def __init__(self) -> None:
        self._deliveries: deque[tuple[float, int]] = deque(maxlen=MAX_GAPS + 1)  # time and tokens, of the first choice
        self._span: Timings | None = None

    def note_tokens(self, count: int, now: float) -> None:
        """Note a delivery of `count` tokens of the first choice."""
        self._deliveries.append((now, count))

    def note_end(self, timings: Timings) -> None:
        """Note the engine's times of a choice that has ended."""
        span = self._span or timings
        self._span = Timings(
            min(span.queue_s, timings.queue_s),
            min(span.first_token_s, timings.first_token_s),
            max(span.total_s, timings.total_s),
        )

    @property
    def span(self) -> Timings:
        """The engine's times of all choices that have ended, at least one: from the first token of any to the last."""
        assert self._span is not None, "no choice has ended"
        return self._span

    def read(self, usage: Usage, num_ended: int) -> StreamTimings:
        """Return the figures of the `num_ended` choices that have ended, at least one, with `usage` in total.

        The figures span all these choices: from the first token of any to the last token of any.
        """
        queue_s, first_token_s, total_s = self.span.queue_s, self.span.first_token_s, self.span.total_s
        num_decoded = usage.completion_tokens - num_ended  # the first token of each choice belongs to the prefill
        return StreamTimings(
            queue_ms=queue_s * 1000,
            ttft_ms=first_token_s * 1000,
            prefill_tok_s=_rate(usage.prompt_tokens - usage.cached_tokens, first_token_s - queue_s),
            decode_tok_s=_rate(num_decoded, total_s - first_token_s),
            itl_p50_ms=self._median_gap_s() * 1000,
        )

    def _median_gap_s(self) -> float:
        """Return the median of the seconds per token: a delivery of k tokens has k equal gaps since the one before."""
        gaps: list[float] = []
        for (before, _), (now, count) in pairwise(self._deliveries):
            gaps += [(now - before) / count] * count if count else []
        return median(gaps) if gaps else 0.0


def _rate(count: int, seconds: float) -> float:
    return count / seconds if count > 0 and seconds > 0 else 0.0
