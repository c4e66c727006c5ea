"""The protocols on both sides of the thread border.

`EngineClient` is the engine as the API sees it; `EnginePort` is the engine thread as the bridge sees it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from app.contract.engine_status import EngineHealth, EngineStats, ModelInfo, StepReport
from app.contract.events import EngineEvent, RequestFailed
from app.contract.requests import EngineCommand, EngineRequest


class EnginePort(Protocol):
    """The engine thread as the bridge sees it. All methods may be called from the loop and never block."""

    def start(self, deliver: Callable[[StepReport], None]) -> None:
        """Load the model in the background; `deliver` is then called on the engine thread, once per step."""

    def post(self, command: EngineCommand) -> None:
        """Put a command into the inbox and wake the engine."""

    def health(self) -> EngineHealth:
        """Return the current state."""

    def model_info(self) -> ModelInfo | None:
        """Return the facts of the loaded model; None until it is loaded."""

    def stop(self) -> None:
        """Ask the thread to end after the current step."""

    def join(self, timeout_s: float) -> bool:
        """Wait for the thread to end (blocks: call it in an executor); return whether it has ended."""


class StreamStatistics(NamedTuple):
    """Counts of one stream: events put in, deltas merged into an earlier one, and pending tokens and bytes."""

    num_events: int = 0
    num_merged: int = 0
    pending_tokens: int = 0
    pending_bytes: int = 0


class ByteCount(Protocol):
    """A sum of bytes that several streams add to."""

    num_bytes: int


class EventStream(Protocol):
    """The events of one request, in order; ends after the last `Finished` or one `RequestFailed`. Loop only.

    One reader at a time, which either waits in `get`, or is called back through `listen` and then polls.
    """

    async def get(self) -> list[EngineEvent]:
        """Wait for events and return them, adjacent deltas of a choice merged, up to a size; [] at the stream's end.

        Cancel-safe: a cancelled `get()` loses no event.
        """

    def wake(self) -> None:
        """Let `get` return once, with [] if there are no events."""

    def poll(self) -> EngineEvent | None:
        """Return one event that may be sent now, or None. Like `get`, it confirms delivery of the events before."""

    @property
    def has_more(self) -> bool:
        """Whether the reader should poll again without a new event."""

    def listen(self, on_news: Callable[[], None]) -> None:
        """Call `on_news` whenever `poll` may have an event."""

    def watch(self, on_high_water: Callable[[int], None]) -> None:
        """Call `on_high_water` when the reader falls behind or catches up: with 0, 1 (above high water) or 2 (full)."""

    def count_in(self, pending: ByteCount) -> None:
        """Add the pending bytes of this stream to a common sum. Call it before the first event."""

    def grant_credit(self, upto: Sequence[int]) -> None:
        """Allow choice i to be sent up to its token `upto[i]`; the numbers never decrease."""

    def discard_text(self) -> None:
        """Drop all pending and future text; the final events still come. Idempotent."""

    @property
    def lacks_credit(self) -> bool:
        """Whether events are pending and all of them wait for credit."""

    def fail(self, failure: RequestFailed) -> None:
        """End the stream from the reader's side: `failure` follows the pending events."""

    def close(self) -> None:
        """Stop listening: later events are dropped. Does not abort the request. Idempotent."""

    def statistics(self) -> StreamStatistics:
        """Return the counts so far."""


class EngineClient(Protocol):
    """The engine as the API sees it, in whatever thread or process it runs. Loop only."""

    def submit(self, request: EngineRequest) -> EventStream:
        """Hand a request to the engine and return its events.

        Raises:
            ModelLoading, EngineFailed, Draining: the engine accepts no requests yet, or any more.
            Overloaded: the queue is full.
            RateLimitExceeded: too many streams of the account are paused.
        """

    def abort(self, request_id: str) -> None:
        """Drop a request; its stream gets one `Finished(cancelled)` per open choice. Idempotent."""

    def pause(self, request_id: str) -> None:
        """Stop generating for a request; its KV blocks stay."""

    def resume(self, request_id: str) -> None:
        """Generate again for a paused request."""

    def model_info(self) -> ModelInfo:
        """Return the facts of the loaded model.

        Raises:
            ModelLoading, EngineFailed: there is no model yet, or any more.
        """

    def stats(self) -> EngineStats:
        """Return the counts of the last step."""

    def health(self) -> EngineHealth:
        """Return state and progress."""

    async def drain(self, timeout_s: float, *, only_begun: bool = False) -> None:
        """Refuse new requests and wait at most `timeout_s` for open ones; `only_begun` fails those without a token."""

    async def close(self) -> None:
        """Abort what is left and end the engine."""
