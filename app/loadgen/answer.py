"""What was seen of one request: when it was sent, when its chunks came, and how it ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

Status = Literal["open", "completed", "cancelled", "failed"]


@dataclass(slots=True)
class Answer:
    """One request as its client saw it; times are seconds on one clock.

    Attributes:
        due: when it was to be sent.
        ready: when it could be: `due`, or later where `--max-concurrency` held it back.
        sent: when it was, before its connection was opened.
        connected: when the connection was open.
        times: when the chunks with text came.
        ended: when the last chunk of the answer came, with text or with the reason of its end; or when it failed.
        prompt_tokens, output_tokens: as the server counts them; None where it does not tell.
        error: a failure in a word or two, by which failures are counted; `message` tells the rest.
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
        """Tokens of the answer: as the server says, else its chunks."""
        return len(self.times) if self.output_tokens is None else self.output_tokens

    @property
    def late(self) -> float:
        """Seconds that this client sent later than it could have."""
        return self.sent - self.ready

    def fail(self, error: str, message: str, now: float) -> None:
        """End as failed, unless it has ended."""
        if self.status == "open":
            self.status, self.error, self.message, self.ended = "failed", error, message, now
