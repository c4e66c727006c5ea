"""How much of one stream its reader has not taken yet, and whether that is too much."""

from __future__ import annotations

from dataclasses import dataclass

from app.messages import TokenDelta
from app.streaming.backlog import delta_bytes


@dataclass(frozen=True, slots=True)
class Marks:
    """How much may be undelivered: from a high mark on it is too much, until both low ones are reached."""

    high_tokens: int = 192
    low_tokens: int = 64
    high_bytes: int = 48 * 1024
    low_bytes: int = 16 * 1024


class Undelivered:
    """Counts tokens and bytes on their way: those that wait, and those handed to a reader who has not come back.

    Attributes:
        waiting_tokens, waiting_bytes: of what waits.
        is_too_much: what was found last, at one of the marks.
    """

    __slots__ = ("_handed_bytes", "_handed_tokens", "_marks", "is_too_much", "waiting_bytes", "waiting_tokens")

    def __init__(self, marks: Marks) -> None:
        self._marks = marks
        self.waiting_tokens = self.waiting_bytes = 0
        self._handed_tokens = self._handed_bytes = 0
        self.is_too_much = False

    @property
    def is_much_handed(self) -> bool:
        """Whether so much was handed over that it matters when the reader comes back."""
        return self._handed_tokens >= self._marks.low_tokens or self._handed_bytes >= self._marks.low_bytes

    def add(self, delta: TokenDelta) -> None:
        """A delta waits."""
        self.waiting_tokens += len(delta.token_ids)
        self.waiting_bytes += delta_bytes(delta)

    def hand(self, delta: TokenDelta) -> None:
        """A delta that waited is handed over."""
        num_tokens, num_bytes = len(delta.token_ids), delta_bytes(delta)
        self.waiting_tokens -= num_tokens
        self.waiting_bytes -= num_bytes
        self._handed_tokens += num_tokens
        self._handed_bytes += num_bytes

    def deliver(self) -> bool:
        """The reader has come back; say whether it has caught up with what was too much."""
        self._handed_tokens = self._handed_bytes = 0
        if not self.is_too_much:
            return False
        marks = self._marks
        self.is_too_much = self.waiting_tokens > marks.low_tokens or self.waiting_bytes > marks.low_bytes
        return not self.is_too_much

    def drop(self) -> None:
        """Nothing waits any more: it will not be handed over."""
        self.waiting_tokens = self.waiting_bytes = 0

    def judge(self) -> bool:
        """Say whether it has become too much; ask when more comes, so that the reader has had the time between."""
        if self.is_too_much:
            return False
        marks = self._marks
        self.is_too_much = (
            self.waiting_tokens + self._handed_tokens >= marks.high_tokens
            or self.waiting_bytes + self._handed_bytes >= marks.high_bytes
        )
        return self.is_too_much
