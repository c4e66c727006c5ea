"""The access log: one line for each request, and one for each stream on a WebSocket."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from starlette.types import Scope

from app.contract.errors import ErrorInfo
from app.contract.events import Usage
from app.observe.log import log_request
from app.streaming.session import Session

_KEY = "quire.access"


@dataclass(slots=True)
class AccessRecord:
    """What is known of a request when its line is written. It lies in the ASGI scope; whoever knows more fills it in.

    Attributes:
        request_id, session_id: those of the request's headers; `request_id` is made where there is none.
        status: the HTTP status, 0 until the answer begins.
        reason: a finish reason, an error code, or a state.
        figures: those of the answer (see `figures_of`).
    """

    request_id: str = ""
    session_id: str | None = None
    status: int = 0
    reason: str | None = None
    figures: dict[str, Any] = field(default_factory=dict)

    def write(self, scope: Scope, duration_s: float, *, is_routine: bool) -> None:
        """Write the line of the request."""
        ids = {"request_id": self.request_id, "session_id": self.session_id}
        method = scope.get("method", "WEBSOCKET")
        fields = _fields(scope, ids, method, self.status, self.reason, duration_s)
        log_request(is_routine=is_routine, **fields, **self.figures)


def access_record(scope: Scope) -> AccessRecord:
    """Return the record of a request."""
    record: AccessRecord = scope.setdefault(_KEY, AccessRecord())
    return record


def log_stream(
    scope: Scope, session: Session | None, failure: ErrorInfo | None, *, ending: str, duration_s: float
) -> None:
    """Write the line of a stream that has ended; without a session its request was refused.

    `request_id` is the connection's, `stream` the server's id for the stream. `ending` is the reason of one that
    neither finished nor failed.
    """
    if failure is not None:
        ending = failure.code
    elif session is not None and session.is_finished:
        ending = session.ending
    ids = {"request_id": access_record(scope).request_id, "stream": None if session is None else session.request.id}
    status = 200 if failure is None else failure.http_status
    figures = {"prompt_tokens": 0, "completion_tokens": 0} if session is None else figures_of(session)
    log_request(**_fields(scope, ids, "START", status, ending, duration_s), **figures)


def figures_of(session: Session) -> dict[str, Any]:
    """Return an answer's number of choices, its token counts, and where there were any: cache hits and preemptions.

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


def _fields(
    scope: Scope, ids: Mapping[str, object], method: str, status: int, reason: str | None, duration_s: float
) -> dict[str, Any]:
    client = (scope.get("client") or [None])[0]
    line = {**ids, "client": client, "method": method, "path": scope["path"], "status": status, "reason": reason}
    return line | {"duration_ms": round(duration_s * 1000, 3)}
