"""The bytes of a resumable stream: another wire's, each event with the position of a reader that has it.

A reader that comes back reads its answer from the front, so that parsers are where they were. What it was told before
is not written again: with log-probabilities that takes forty times as long. Its bytes behind `after` are those that it
would have got without a break.

What a parser holds back until the end of a choice is told after the last token. It has a position of its own, one above
the last one, for a reader that has all tokens may have it or not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from app.api.wire.framing import Framing
from app.api.wire.wire import Wire
from app.contract.errors import ErrorInfo
from app.contract.events import Finished, PromptScored, Timings, TokenDelta, Usage


class NumberedWire:
    """Implements `StreamWire` for a reader at `after`, over a `wire` with the same framing. One owner."""

    def __init__(self, wire: Wire, framing: Framing, after: Sequence[int]) -> None:
        self.media_type = wire.media_type
        self.heartbeat = wire.heartbeat
        self._wire = wire
        self._framing = framing
        self._after = tuple(after)
        self._told = [0] * len(after)  # the positions of the deltas, also of those that are dropped
        self._positions = [*after]

    def first(self, scored: PromptScored | None = None) -> Iterator[bytes]:
        """Yield what a stream begins with, for a reader that begins."""
        if not any(self._after):
            yield self._numbered(b"".join(self._wire.first(scored)))

    def delta(self, delta: TokenDelta) -> bytes:
        """Return the events of new tokens; none if the reader was told them before."""
        choice = delta.choice
        self._told[choice] = told = delta.first - 1 + (len(delta.token_ids) or 1)
        if told <= self._after[choice]:
            self._wire.skip(delta)
            return b""
        self._positions[choice] = told
        return self._numbered(self._wire.delta(delta))

    def finish(self, finished: Finished) -> bytes:
        """Return the events of the end of a choice; only text that was held back can have been told before."""
        *rest, end = self._framing.split(self._wire.finish(finished))
        choice = finished.choice
        if rest and self._after[choice] <= self._told[choice]:
            self._positions[choice] = self._told[choice] + 1
            return self._numbered(b"".join([*rest, end]))
        return self._numbered(end)

    def last(self, usage: Usage, span: Timings) -> bytes:
        """Return the end of a stream whose choices have all ended."""
        events = self._wire.last(usage, span).removesuffix(self._framing.end)
        return self._numbered(events) + self._framing.numbered_end

    def error(self, error: ErrorInfo) -> bytes:
        """Return the end of a stream that has failed."""
        return self._numbered(self._wire.error(error))

    def _numbered(self, events: bytes) -> bytes:
        if not events:
            return b""
        positions = self._positions
        position = b"%d" % positions[0] if len(positions) == 1 else position_text(positions).encode()
        return self._framing.numbered(events, position)


def position_text(positions: Sequence[int]) -> str:
    """Return a reader's positions in the choices of an answer as clients get and send them: `17.12`."""
    return ".".join(map(str, positions))
