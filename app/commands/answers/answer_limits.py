"""The limits of answers in the terminal: how much of the context one may fill, and that one in circles ends."""

from __future__ import annotations

from typing import Any

CONTEXT_SHARE = 0.25
"""Of an answer that has no limit of its own: what follows needs room, too."""
CHAT_LIMITS: dict[str, Any] = {"context_share": CONTEXT_SHARE, "repetition_stop": True}
"""Fields of a body, as a chat in the terminal sends them to a server that knows them."""
