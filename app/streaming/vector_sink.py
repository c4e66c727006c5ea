"""Waits for the vectors of pooled requests, which are submitted together."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from app.contract.errors import Draining, ErrorInfo
from app.contract.events import Embedded, EngineEvent, Finished, Progress, RequestFailed
from app.contract.ports import EngineClient
from app.contract.requests import EngineRequest
from app.streaming.waker import Waker


class VectorSink:
    """Implements `EventSink` for one pooled request; `on_end` is called when it has ended. Loop only.

    Attributes:
        vector: its vector, once there is one.
        error: why there is none.
    """

    def __init__(self, on_end: Callable[[], None]) -> None:
        self.vector: bytes | None = None
        self.error: ErrorInfo | None = None
        self._on_end = on_end

    @property
    def is_complete(self) -> bool:
        return self.vector is not None or self.error is not None

    @property
    def has_begun(self) -> bool:
        """Whether the final event was received: there is no other one."""
        return self.is_complete

    @property
    def num_open_choices(self) -> int:
        """The number of choices that have not ended: one, or none."""
        return not self.is_complete

    def put(self, event: EngineEvent, report: int | None = None) -> None:
        """Take an event; see `EventSink`."""
        if self.is_complete or isinstance(event, Progress):
            return
        if isinstance(event, Embedded):
            self.vector = event.vector
        elif isinstance(event, RequestFailed):
            self.error = event.error
        elif isinstance(event, Finished):
            self.error = Draining("The server was stopped before the answer was complete.").info()
        self._on_end()


async def embed(engine: EngineClient, requests: Sequence[EngineRequest]) -> list[bytes] | ErrorInfo:
    """Return the vectors of all requests, or the error of one that failed; then the others are aborted.

    Cancel-safe: all requests are aborted.

    Raises:
        ModelLoading, EngineFailed, Draining, Overloaded, RateLimitExceeded: see `EngineClient.submit_all`.
    """
    waker = Waker()
    sinks = [VectorSink(waker.wake) for _ in requests]
    engine.submit_all(list(zip(requests, sinks, strict=True)))
    try:
        while not all(sink.is_complete for sink in sinks):
            error = next((sink.error for sink in sinks if sink.error is not None), None)
            if error is not None:
                return error
            await waker.wait()
    finally:
        for request, sink in zip(requests, sinks, strict=True):
            if not sink.is_complete:
                engine.abort(request.id)
    vectors = [sink.vector for sink in sinks if sink.vector is not None]
    error = next((sink.error for sink in sinks if sink.error is not None), None)
    return vectors if error is None else error
