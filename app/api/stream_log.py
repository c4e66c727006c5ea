"""The line that a stream on a WebSocket leaves in the access log: what a request of its own would have left."""

from __future__ import annotations

from starlette.types import Scope

from app.errors import ErrorInfo
from app.messages import Usage
from app.observe.log import log_request
from app.streaming.session import Session


def log_stream(
    scope: Scope, session: Session | None, failure: ErrorInfo | None, *, ending: str, duration_s: float
) -> None:
    """Write the line of a stream that has ended; without a session its request was not taken.

    `request_id` is the connection's, `stream` the server's id for the stream. `ending` is the reason of one that
    neither finished nor failed; of such a one the tokens are those that were read.
    """
    usage = _usage(session)
    log_request(
        request_id=scope["state"].get("request_id"),
        stream=None if session is None else session.request.id,
        client=(scope.get("client") or [None])[0],
        method="START",
        path=scope["path"],
        status=200 if failure is None else failure.http_status,
        reason=_reason(session, ending) if failure is None else failure.code,
        duration_ms=round(duration_s * 1000, 3),
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
    )


def _reason(session: Session | None, ending: str) -> str:
    if session is None or not session.is_finished:
        return ending
    return ", ".join(session.finish_reasons.values())


def _usage(session: Session | None) -> Usage:
    if session is None:
        return Usage(0, 0)
    return session.usage or Usage(len(session.request.prompt_token_ids), session.num_tokens)
