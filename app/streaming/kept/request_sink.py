"""Where the engine puts the events of one request of a live stream."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from app.contract.events import EngineEvent, Finished, Progress, RequestFailed, TokenDelta

if TYPE_CHECKING:
    from app.streaming.kept.live_stream import LiveStream


class RequestSink:
    """Implements `EventSink` for one request: passes the events of its open choices to the stream, whose choices begin
    at `first` for it.

    Attributes:
        has_begun: whether a token or a final event was received.
    """

    def __init__(self, stream: LiveStream, first: int, open_choices: Iterable[int]) -> None:
        self._stream = stream
        self._first = first
        self._open_choices = set(open_choices)
        self.has_begun = False

    @property
    def is_complete(self) -> bool:
        """Whether the request has ended."""
        return not self._open_choices

    @property
    def num_open_choices(self) -> int:
        """The number of choices that have not ended."""
        return len(self._open_choices)

    def put(self, event: EngineEvent, report: int | None = None) -> None:
        """Add an event. Never blocks."""
        if not self._open_choices:
            return
        self._stream.note_report(report)
        if isinstance(event, TokenDelta):
            if event.choice in self._open_choices:
                self.has_begun = True
                self._stream.add(self._first + event.choice, event)
        elif isinstance(event, Finished):
            if event.choice in self._open_choices:
                self.has_begun = True
                self._open_choices.remove(event.choice)
                self._stream.end_choice(self._first + event.choice, event)
        elif isinstance(event, RequestFailed):
            self.close()
            (self._stream.stop if event.is_stopped else self._stream.fail)(event.error)
        elif isinstance(event, Progress):
            self._stream.note_progress(event)

    def close(self) -> None:
        """Take no more events: the request has ended, or its answer has."""
        self._open_choices.clear()
