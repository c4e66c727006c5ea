"""The access log: one line for each request, and one for each stream on a WebSocket."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from starlette.types import Scope

from app.contract.errors import ErrorInfo
from app.contract.events import Usage
from app.observe.request_log import RequestLog
from app.observe.shown_id import shown_id
from app.streaming.kept.polling_reader import PollingReader
from app.streaming.kept.stream_cursor import StreamCursor
from app.streaming.session import Session
from app.streaming.session_group import SessionGroup

STREAM_PATH = "/v1/streams/"
_RESPONSE = "/v1/responses/"
_KEY = "quire.access"


@dataclass(slots=True)
class AccessRecord:
    """The values of a request's line, in the ASGI scope: handlers set them until the line is written.

    Attributes:
        request_id, session_id: from the request's headers; a missing `request_id` is generated.
        status: the HTTP status, 0 until the response begins.
        reason: a finish reason, an error code, or a state.
        figures: of the response (see `figures_of`).
        log: where the line goes.
    """

    request_id: str = ""
    session_id: str | None = None
    status: int = 0
    reason: str | None = None
    figures: dict[str, Any] = field(default_factory=dict)
    log: RequestLog = field(default_factory=RequestLog)

    def write(self, scope: Scope, duration_s: float, *, is_routine: bool) -> None:
        """Write the line of the request."""
        fields = _fields(scope, scope.get("method", "WEBSOCKET"), self.status, self.reason, duration_s)
        self.log.write(
            is_routine=is_routine, request_id=self.request_id, session_id=self.session_id, **fields, **self.figures
        )


def access_record(scope: Scope) -> AccessRecord:
    """Return the record of a request."""
    record: AccessRecord = scope.setdefault(_KEY, AccessRecord())
    return record


def log_stream(
    scope: Scope,
    session: Session | PollingReader | None,
    failure: ErrorInfo | None,
    *,
    method: str,
    end_reason: str,
    duration_s: float,
) -> None:
    """Write the line of a stream that has ended; without a session its request was rejected.

    `request_id` is the connection's, `stream` the server's id for the stream, shortened if the answer is kept. `method`
    is the frame that has opened it, `end_reason` the reason if the stream neither finished nor failed.
    """
    if failure is not None:
        end_reason = failure.code
    elif session is not None and session.is_finished:
        end_reason = session.end_reason
    status = 200 if failure is None else failure.http_status
    figures = {"prompt_tokens": 0, "completion_tokens": 0} if session is None else figures_of(session)
    fields = _fields(scope, method, status, end_reason, duration_s)
    stream = session.request.id if isinstance(session, Session) else session and shown_id(session.stream.id)
    record = access_record(scope)
    record.log.write(request_id=record.request_id, stream=stream, **fields, **figures)


def figures_of(session: Session | SessionGroup | StreamCursor) -> dict[str, Any]:
    """Return the number of choices, token counts, times, and counts of cache hits and preemptions that are not 0.

    Of a session that did not end, the generated tokens that were read count. The times are the engine's, of the choices
    whose end was read: in the queue, and until the first token of any if there was one.
    """
    usage = session.usage or Usage(session.num_prompt_tokens, 0)
    if not session.is_finished or session.error is not None:
        usage = replace(usage, completion_tokens=session.num_tokens)
    rare = {
        "cached_tokens": usage.cached_tokens, "preemptions": usage.preemptions, "lost_tokens": usage.lost_tokens,
    }  # fmt: skip
    return {
        "n": session.num_choices,
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        **_times_of(session),
        **{name: count for name, count in rare.items() if count},
    }


def _times_of(session: Session | SessionGroup | StreamCursor) -> dict[str, float]:
    if session.usage is None:
        return {}
    span = session.span()
    times = {"queue_ms": round(span.queue_s * 1000, 3)}
    if session.num_tokens:
        times["first_token_ms"] = round(span.first_token_s * 1000, 3)
    return times


def _fields(scope: Scope, method: str, status: int, reason: str | None, duration_s: float) -> dict[str, Any]:
    client = (scope.get("client") or [None])[0]
    path = scope["path"]
    for kept in (STREAM_PATH, f"{_RESPONSE}resp_"):  # on a server without keys, a whole id opens the answer
        if path.startswith(kept):
            whole_id, *rest = path.split("/")[3:]
            path = "/".join([*path.split("/")[:3], shown_id(whole_id), *rest])
    line = {"client": client, "method": method, "path": path, "status": status, "reason": reason}
    return line | {"duration_ms": round(duration_s * 1000, 3)}
