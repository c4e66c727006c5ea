"""The part of an answer's id that logs and the live view show: without keys, a whole id opens a kept answer."""

from __future__ import annotations

_SHOWN_DIGITS = 8


def shown_id(answer_id: str) -> str:
    """Return the part of the id of an answer, or of one of its requests, that logs and the live view show."""
    separator = max(answer_id.find("-"), 0) or answer_id.find("_")  # `chatcmpl-`, `resp_`
    return answer_id[: separator + 1 + _SHOWN_DIGITS]
