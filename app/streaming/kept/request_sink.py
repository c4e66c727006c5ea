"""Where the engine puts the events of one request of a live stream."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from app.contract.events import EngineEvent, Finished, Progress, RequestFailed, TokenDelta
from app.streaming.flow.open_choices import OpenChoices

if TYPE_CHECKING:
    from app.streaming.kept.live_stream import LiveStream


class RequestSink(OpenChoices):
    """Implements `EventSink` for one request: passes the events of its open choices to the stream, whose choices begin
    at `first` for it. Loop only.
    """

    __slots__ = ("_first", "_stream")

    def __init__(self, stream: LiveStream, first: int, open_choices: Iterable[int]) -> None:
        super().__init__(open_choices)
        self._stream = stream
        self._first = first

    def put(self, event: EngineEvent, report: int | None = None) -> None:
        """Add an event. Never blocks."""
        if not self._open:
            return
        self._stream.note_report(report)
        if isinstance(event, TokenDelta):
            if self._begin(event.choice):
                self._stream.add(self._first + event.choice, event)
        elif isinstance(event, Finished):
            if self._begin(event.choice):
                self._end(event.choice)
                self._stream.end_choice(self._first + event.choice, event)
        elif isinstance(event, RequestFailed):
            self.close()
            (self._stream.stop if event.is_stopped else self._stream.fail)(event.error)
        elif isinstance(event, Progress):
            self._stream.note_progress(event)

    def close(self) -> None:
        """Take no more events: the request has ended, or its answer has."""
        self._end_all()
