"""The bytes of a resumable stream: another wire's, each event with the position of a reader that has it.

A reader that comes back reads its answer from the front, so that parsers are where they were. What it was told before
is not written again: with log-probabilities that takes forty times as long. Its bytes behind `after` are those that it
would have got without a break.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from app.api.wire.framing import Framing
from app.api.wire.positions import Positions
from app.api.wire.wire import Wire, joined
from app.contract.errors import ErrorInfo
from app.contract.events import Finished, PromptScored, Timings, TokenDelta, Usage


class NumberedWire:
    """Implements `StreamWire` for a reader at `after`, over a `wire` with the same framing. One owner."""

    __slots__ = ("_framing", "_positions", "_wire", "heartbeat", "media_type")

    def __init__(self, wire: Wire, framing: Framing, after: Sequence[int]) -> None:
        self.media_type = wire.media_type
        self.heartbeat = wire.heartbeat
        self._wire = wire
        self._framing = framing
        self._positions = Positions(after)

    def first(self, scored: PromptScored | None = None) -> Iterator[bytes]:
        """Yield what a stream begins with, for a reader that begins."""
        if not any(self._positions.after):
            yield self._numbered(b"".join(self._wire.first(scored)))

    def delta(self, delta: TokenDelta) -> bytes:
        """Return the events of new tokens; none if the reader was told them before."""
        if not self._positions.take(delta):
            self._wire.skip(delta)
            return b""
        return self._numbered(self._wire.delta(delta))

    def finish(self, finished: Finished) -> bytes:
        """Return the events of the end of a choice; only text that was held back can have been told before."""
        *rest, end = self._framing.split(self._wire.finish(finished))
        is_new = bool(rest) and self._positions.take_rest(finished.choice)
        return self._numbered(b"".join([*rest, end]) if is_new else end)

    def last(self, usage: Usage, span: Timings) -> bytes:
        """Return the end of a stream whose choices have all ended."""
        events = joined(self._wire.last(usage, span)).removesuffix(self._framing.end)
        return self._numbered(events) + self._framing.numbered_end

    def error(self, error: ErrorInfo) -> bytes:
        """Return the end of a stream that has failed."""
        return self._numbered(joined(self._wire.error(error)))

    def _numbered(self, events: bytes) -> bytes:
        return self._framing.numbered(events, self._positions.encode()) if events else b""
