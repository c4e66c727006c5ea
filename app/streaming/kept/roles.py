"""The roles around a live stream: its readers, who keeps it, and who records it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from app.contract.events import TokenDelta
from app.streaming.flow.flow_window import Lag

if TYPE_CHECKING:
    from app.streaming.kept.live_stream import Ending, LiveStream


class LiveReader(Protocol):
    """A reader as its stream sees it.

    Attributes:
        transport: one of `kept_streams.TRANSPORTS`.
        has_caught_up: whether it has once not lagged, as far as `check` knows.
    """

    transport: str
    has_caught_up: bool

    def check(self) -> Lag:
        """Return how far the reader lags; called before a step's events are added and whenever that may change."""

    @property
    def lag_from(self) -> tuple[float, float]:
        """The tokens and the bytes of its stream from which on it would lag, if it reads no more."""

    def on_put(self) -> None:
        """Note that there may be something to read."""

    def note_pause(self, is_paused: bool) -> None:
        """Note that generation has stopped for the readers, or goes on."""

    def drop(self) -> None:
        """End with the error of a reader that is too slow."""


class Keeper(Protocol):
    """Who keeps a stream for readers that come back."""

    def grow(self, stream: LiveStream, num_bytes: int) -> None:
        """Count what was told."""

    def settle(self, stream: LiveStream) -> None:
        """Note that the stream has ended, or that a reader has come or gone."""

    def note_return(self, transport: str) -> None:
        """Count a reader that has come after the first one."""

    def forget(self, stream: LiveStream) -> None:
        """Keep a stream no longer; those who read it may read on."""


class Recorder(Protocol):
    """The part that records what streams tell before their readers are told."""

    def add(self, stream: LiveStream, choice: int, delta: TokenDelta) -> None:
        """Record tokens, and then let the stream take them."""

    def add_ending(self, stream: LiveStream, ending: Ending) -> None:
        """Record an ending behind the tokens, and then let the stream take it."""

    def is_durable(self, stream: LiveStream) -> bool:
        """Return whether the stream outlives the process."""

    def forget(self, stream: LiveStream) -> None:
        """Delete a stream that is not kept any longer."""
