"""What an answer leaves in the access log: figures in its request's line, on a WebSocket a line of its own."""

from __future__ import annotations

from dataclasses import replace

from starlette.types import Scope

from app.contract.errors import ErrorInfo
from app.contract.events import Usage
from app.observe.log import log_request
from app.streaming.session import Session

ANSWER = "answer"
"""Where `note_answer` leaves the figures in a request's state."""


def note_answer(scope: Scope, session: Session) -> None:
    """Leave the figures of an answer that has ended, or is given up, for the line of its request."""
    scope.setdefault("state", {})[ANSWER] = answer_fields(session)


def log_stream(
    scope: Scope, session: Session | None, failure: ErrorInfo | None, *, ending: str, duration_s: float
) -> None:
    """Write the line of a stream that has ended; without a session its request was not taken.

    `request_id` is the connection's, `stream` the server's id for the stream. `ending` is the reason of one that
    neither finished nor failed.
    """
    if failure is not None:
        ending = failure.code
    elif session is not None and session.is_finished:
        ending = session.ending
    log_request(
        request_id=scope["state"].get("request_id"),
        stream=None if session is None else session.request.id,
        client=(scope.get("client") or [None])[0],
        method="START",
        path=scope["path"],
        status=200 if failure is None else failure.http_status,
        reason=ending,
        duration_ms=round(duration_s * 1000, 3),
        **({"prompt_tokens": 0, "completion_tokens": 0} if session is None else answer_fields(session)),
    )


def answer_fields(session: Session) -> dict[str, object]:
    """Return an answer's number of choices, its token counts, and what it suffered, where it did.

    The generated tokens of one that did not end are those that were read.
    """
    usage = session.usage or Usage(len(session.request.prompt_token_ids), 0)
    if not session.is_finished or session.error is not None:
        usage = replace(usage, completion_tokens=session.num_tokens)
    rare = {
        "cached_tokens": usage.cached_tokens, "preemptions": usage.preemptions, "lost_tokens": usage.lost_tokens,
    }  # fmt: skip
    return {
        "n": session.request.params.n,
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        **{name: count for name, count in rare.items() if count},
    }
