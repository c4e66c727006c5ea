"""Answers that end: the limits of answers in the terminal, and in words how one has ended."""

from __future__ import annotations

from typing import Any

from app.commands.streamed_text import AnswerEnd
from app.contract.events import REPETITION, FinishReason

CONTEXT_SHARE = 0.25
"""Of an answer that has no limit of its own: what follows needs room, too."""
CHAT_LIMITS: dict[str, Any] = {"context_share": CONTEXT_SHARE, "repetition_stop": True}
"""Fields of a body, as a chat in the terminal sends them."""


def end_words(end: AnswerEnd) -> str | None:
    """Return why an answer is not complete; None if it is."""
    if end.finish_reason != FinishReason.LENGTH:
        return None
    if end.stop_reason == REPETITION:
        return "the answer repeated itself and was ended"
    return "the answer has reached its limit of tokens"
