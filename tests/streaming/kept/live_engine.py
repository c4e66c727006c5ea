"""An engine without a model for live streams: tests put its events, and see what it was told to do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from app.contract.errors import QuireError
from app.contract.events import (
    ChoiceEnd,
    EngineEvent,
    Finished,
    FinishReason,
    RequestFailed,
    Timings,
    TokenDelta,
    Usage,
)
from app.contract.ports import EventSink
from app.contract.requests import EngineRequest
from app.streaming.kept.live_stream import LiveStream
from app.streaming.kept.waiting_reader import WaitingReader
from tests.fakes import make_request


class LiveEngine:
    """Records what is paused and aborted; `put` passes events to the sinks of requests."""

    def __init__(self) -> None:
        self.sinks: dict[str, EventSink] = {}
        self.requests: dict[str, EngineRequest] = {}
        self.paused: set[str] = set()
        self.aborted: list[str] = []
        self.rejection: QuireError | None = None
        self._num_reports = 0

    def submit_all(self, submissions: Sequence[tuple[EngineRequest, EventSink]]) -> None:
        if self.rejection is not None:
            raise self.rejection
        self.sinks.update({request.id: sink for request, sink in submissions})
        self.requests.update({request.id: request for request, _ in submissions})

    def pause(self, request_id: str) -> None:
        assert request_id not in self.paused
        self.paused.add(request_id)

    def resume(self, request_id: str) -> None:
        self.paused.remove(request_id)

    def abort(self, request_id: str) -> None:
        self.aborted.append(request_id)

    def put(self, request_id: str, *events: EngineEvent) -> None:
        """Put the events of one step."""
        self._num_reports += 1
        for event in events:
            self.sinks[request_id].put(event, self._num_reports)


class LateCalls:
    """Calls that are due later: `fire` makes those that were not cancelled."""

    def __init__(self) -> None:
        self.due: list[LateCall] = []

    def __call__(self, seconds: float, function: Callable[[], None]) -> LateCall:
        call = LateCall(self, seconds, function)
        self.due.append(call)
        return call

    def fire(self) -> None:
        for call in [*self.due]:
            if call in self.due:
                call.fire()


class LateCall:
    def __init__(self, calls: LateCalls, seconds: float, function: Callable[[], None]) -> None:
        self.seconds, self.function = seconds, function
        self._calls = calls

    def cancel(self) -> None:
        self._calls.due.remove(self)

    def fire(self) -> None:
        """Make the call, which may cancel itself."""
        self.function()
        if self in self._calls.due:
            self._calls.due.remove(self)


def live_stream(engine: LiveEngine, stream_id: str = "r", *, tenant: str | None = None, **settings: Any) -> LiveStream:
    """A stream of one request of `n` choices."""
    request = make_request(stream_id, account=tenant or "", n=settings.pop("n", 1))
    request = replace(request, tenant=tenant, grammar=settings.pop("grammar", None))
    return LiveStream(engine, [request], stream_id, **settings)


def delta(request_id: str, first: int, text: str, *, choice: int = 0, size: int = 1) -> TokenDelta:
    """A delta of `size` tokens, whose ids are their numbers."""
    return TokenDelta(request_id, choice, first, tuple(range(first, first + size)), text)


def finished(
    request_id: str, choice: int = 0, reason: FinishReason = FinishReason.STOP, num_tokens: int = 1
) -> Finished:
    return Finished(request_id, choice, ChoiceEnd(reason), Usage(3, num_tokens), Timings(0, 1, 2))


def failed(request_id: str, error: QuireError) -> RequestFailed:
    return RequestFailed(request_id, error.info())


def read_now(reader: WaitingReader) -> list[EngineEvent]:
    """What a reader can read without waiting, less than a piece."""
    reader.wake()
    receiving = reader.receive()
    with pytest.raises(StopIteration) as found:
        receiving.send(None)
    events: list[EngineEvent] = found.value.value
    return events
