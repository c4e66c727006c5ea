"""The record of one request: when it was sent, when its chunks arrived, and how it ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

Status = Literal["open", "completed", "cancelled", "failed"]


@dataclass(slots=True)
class Answer:
    """One request as its client saw it; times are seconds of `time.perf_counter`.

    Attributes:
        due: when the load schedules the request.
        ready: when it could be sent: `due`, or later if `--max-concurrency` delayed it.
        sent: when it was sent; its connection was opened then.
        connected: when the connection was open.
        times: when the chunks with text arrived.
        ended: when the last chunk arrived, with text or with the finish reason; or when the request failed.
        prompt_tokens, output_tokens: as counted by the server; None if it does not report them.
        error: the name of a failure, by which failures are counted; `message` explains it.
    """

    due: float
    ready: float
    sent: float
    connected: float | None = None
    times: list[float] = field(default_factory=list)
    ended: float = 0.0
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    status: Status = "open"
    error: str = ""
    message: str = ""
    http_status: int = 0

    @property
    def ttft(self) -> float | None:
        """Seconds from sending to the first chunk with text."""
        return self.times[0] - self.sent if self.times else None

    @property
    def e2e(self) -> float:
        """Seconds from sending to the last chunk."""
        return self.ended - self.sent

    @property
    def tpot(self) -> float | None:
        """Seconds for each token after the first; None for answers of one token."""
        return (self.e2e - self.ttft) / (self.num_output - 1) if self.ttft is not None and self.num_output > 1 else None

    @property
    def gaps(self) -> list[float]:
        """Seconds between chunks."""
        return [later - earlier for earlier, later in pairwise(self.times)]

    @property
    def num_output(self) -> int:
        """Tokens of the answer as counted by the server, else the number of chunks."""
        return len(self.times) if self.output_tokens is None else self.output_tokens

    @property
    def late(self) -> float:
        """Seconds from when the request could be sent to when this client sent it."""
        return self.sent - self.ready

    def fail(self, error: str, message: str, now: float) -> None:
        """Record a failure, unless the answer has ended."""
        if self.status == "open":
            self.status, self.error, self.message, self.ended = "failed", error, message, now
