"""The part of an answer's id that logs and the live view show: without keys, whoever has a whole id has the answer."""

from __future__ import annotations

_NUM_CHARS = len("chatcmpl-") + 8


def shown_id(answer_id: str) -> str:
    """Return the beginning of an id, which tells answers apart and opens none."""
    return answer_id[:_NUM_CHARS]
