"""Answers that end: the limits of answers in the terminal, and in words how one has ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from app.contract.events import REPETITION, FinishReason, StopReason

OnEnd = Callable[[str | None, StopReason | None], None]
"""Is called at the end of an answer with its finish reason and its stop reason."""

CONTEXT_SHARE = 0.25
"""Of an answer that has no limit of its own: what follows needs room, too."""
CHAT_LIMITS: dict[str, Any] = {"context_share": CONTEXT_SHARE, "repetition_stop": True}
"""Fields of a body, as a chat in the terminal sends them."""


def end_words(reason: str | None, stop_reason: StopReason | None) -> str | None:
    """Return why an answer is not complete; None if it is."""
    if reason != FinishReason.LENGTH:
        return None
    if stop_reason == REPETITION:
        return "the answer repeated itself and was ended"
    return "the answer has reached its limit of tokens"


def ignore_end(reason: str | None, stop_reason: StopReason | None) -> None:
    """Tell nobody how an answer has ended."""
