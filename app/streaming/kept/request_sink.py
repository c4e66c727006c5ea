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

    When the request has ended it lets go of the stream, which has it, too. Else a stream that is kept no longer would
    be there until the collector looks at old objects, once in ten thousand requests or more.
    """

    __slots__ = ("_first", "_stream")

    def __init__(self, stream: LiveStream, first: int, open_choices: Iterable[int]) -> None:
        super().__init__(open_choices)
        self._stream: LiveStream | None = stream
        self._first = first

    def put(self, event: EngineEvent, report: int | None = None) -> None:
        """Add an event. Never blocks."""
        stream = self._stream
        if stream is None:
            return
        stream.note_report(report)
        if isinstance(event, TokenDelta):
            if self._begin(event.choice):
                stream.add(self._first + event.choice, event)
        elif isinstance(event, Finished):
            if self._begin(event.choice):
                self._end(event.choice)
                stream.end_choice(self._first + event.choice, event)
        elif isinstance(event, RequestFailed):
            self.close()
            (stream.stop if event.is_stopped else stream.fail)(event.error)
        elif isinstance(event, Progress):
            stream.note_progress(event)

    def close(self) -> None:
        """Take no more events: the request has ended, or its answer has."""
        self._end_all()

    def _end(self, choice: int) -> None:
        super()._end(choice)
        if self.is_complete:
            self._stream = None

    def _end_all(self) -> None:
        super()._end_all()
        self._stream = None
