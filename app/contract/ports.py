"""The protocols on both sides of the thread border.

`EngineClient` is the engine as the API sees it; `EnginePort` is the engine thread as `AsyncEngine` sees it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from app.contract.engine_picture import EnginePicture
from app.contract.engine_status import EngineHealth, EngineStats, ModelInfo, StepReport
from app.contract.events import EngineEvent
from app.contract.requests import EngineCommand, EngineRequest
from app.contract.stored_prefix import StoredPrefix


class EnginePort(Protocol):
    """The engine thread as `AsyncEngine` sees it. All methods may be called from the loop and never block."""

    def start(self, deliver: Callable[[StepReport], None]) -> None:
        """Load the model in the background; `deliver` is then called on the engine thread, once per step."""

    def post(self, command: EngineCommand) -> None:
        """Put a command into the inbox and wake the engine."""

    def health(self) -> EngineHealth:
        """Return the current state."""

    def model_info(self) -> ModelInfo | None:
        """Return the facts of the loaded model; None until it is loaded."""

    def stop(self) -> None:
        """End the thread after the current step. Returns at once."""

    def join(self, timeout_s: float) -> bool:
        """Wait for the thread to end (blocks: call it in an executor); return whether it has ended."""


class PrefixStore(Protocol):
    """A store of keys and values of prompts that outlives the process. Any thread."""

    def limit_s(self, request: EngineRequest) -> float:
        """Return for how many seconds a request may wait for the beginning of its prompt; 0 if it is not there. Never
        blocks.
        """

    def fetch(self, request: EngineRequest, limit_s: float) -> StoredPrefix | None:
        """Read the beginning of a prompt, as far as that is worth it, for at most `limit_s` seconds. Blocks."""

    def close(self, limit_s: float, *, has_ended: bool) -> None:
        """Store within `limit_s` what waits and, if the engine thread `has_ended`, what its cache holds. Blocks."""


class EventSink(Protocol):
    """Receives the events of one request, in order, up to one `Finished` per choice or a `RequestFailed`. Loop only."""

    def put(self, event: EngineEvent, report: int | None = None) -> None:
        """Add an event. Never blocks. Events with the same `report` number are part of one step report."""

    @property
    def has_begun(self) -> bool:
        """Whether a token or a final event was received."""

    @property
    def is_complete(self) -> bool:
        """Whether the request has ended."""

    @property
    def num_open_choices(self) -> int:
        """The number of choices that have not ended."""


class EngineClient(Protocol):
    """The engine as the API sees it, in whatever thread or process it runs. Loop only."""

    def submit(self, request: EngineRequest, sink: EventSink) -> None:
        """Submit a request to the engine; its events go to `sink`.

        Raises:
            ModelLoading, EngineFailed, Draining: the engine accepts no requests yet, or any more.
            Overloaded: the queue is full.
            RateLimitExceeded: too many streams of the account are paused.
        """

    def submit_all(self, submissions: Sequence[tuple[EngineRequest, EventSink]]) -> None:
        """Submit several requests of one account, or none of them; see `submit`."""

    def check_room(self, account: str) -> None:
        """Raise what `submit` would raise for any request of an account now, before its body is read."""

    def abort(self, request_id: str) -> None:
        """Drop a request; its sink gets one `Finished(cancelled)` per open choice. Idempotent."""

    def pause(self, request_id: str) -> None:
        """Stop generating for a request; it keeps its KV blocks."""

    def resume(self, request_id: str) -> None:
        """Continue to generate for a paused request."""

    def watch(self, take: Callable[[EnginePicture], None] | None) -> None:
        """Pass pictures of the engine's books to `take` on the loop, from now on; with None none are made."""

    def model_info(self) -> ModelInfo:
        """Return the facts of the loaded model.

        Raises:
            ModelLoading, EngineFailed: there is no model yet, or any more.
        """

    def stats(self) -> EngineStats:
        """Return the counts of the last step."""

    def brownout_level(self, account: str) -> int:
        """Return the level of brown-out for a new request of an account; 0 if others cause the load."""

    def health(self) -> EngineHealth:
        """Return state and progress."""

    async def drain(self, timeout_s: float, *, only_begun: bool = False) -> None:
        """Reject new requests and wait at most `timeout_s` for open ones; `only_begun` fails those without a token."""

    async def close(self) -> None:
        """Abort what is left and end the engine."""
