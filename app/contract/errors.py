"""The exception tree: every error a user can meet, with its wire code, HTTP status and WebSocket close code.

A message says what was given, what is allowed and what to do. `param` is the path of the offending field.
"""

from __future__ import annotations

from dataclasses import dataclass

# Where one request's fault is contained, everything is caught but these: a panic inside a native library (tokenizers)
# is a BaseException too, and must not end the thread that serves everybody.
NOT_OURS = (KeyboardInterrupt, SystemExit)


@dataclass(frozen=True, slots=True)
class ErrorInfo:
    """An error as plain data: what crosses threads and goes on the wire."""

    code: str
    message: str
    param: str | None = None
    http_status: int = 500
    type: str = "server_error"
    retry_after_s: int | None = None


class QuireError(Exception):
    """Base of all errors meant for a user; anything else that escapes is our own bug."""

    code = "engine_error"
    http_status = 500
    ws_close_code = 1011
    type = "server_error"
    retry_after_s: int | None = None

    def __init__(self, message: str, *, param: str | None = None, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        if retry_after_s is not None:
            self.retry_after_s = retry_after_s

    def info(self) -> ErrorInfo:
        """Return this error as plain data."""
        return ErrorInfo(self.code, self.message, self.param, self.http_status, self.type, self.retry_after_s)


# --- Configuration: met at start, before the server listens -------------------------------------------------


class ConfigurationError(QuireError):
    """A command line, setting or combination of settings that is refused (exit code 2)."""

    code = "invalid_value"
    http_status = 400
    type = "invalid_request_error"
    exit_code = 2


class ModelRefused(ConfigurationError):
    """A model folder that is missing, damaged, unsupported or unsafe (exit code 2)."""


class CannotStart(QuireError):
    """The machine cannot start the server now: port in use, not enough memory (exit code 75)."""

    exit_code = 75


# --- Requests: the client's mistake --------------------------------------------------------------------------


class RequestError(QuireError):
    """A request that is refused because of what it says."""

    code = "invalid_value"
    http_status = 400
    ws_close_code = 4400
    type = "invalid_request_error"


class JsonInvalid(RequestError):
    """The body is not one JSON object."""

    code = "json_invalid"


class InvalidValue(RequestError):
    """A known field has a bad value."""


class UnsupportedParameter(RequestError):
    """A known feature that this server does not have."""

    code = "unsupported_parameter"


class ContextLengthExceeded(RequestError):
    """Prompt and answer together are longer than the model's context."""

    code = "context_length_exceeded"


class KVCapacityExceeded(RequestError):
    """The request would not fit the KV cache even alone."""

    code = "kv_capacity_exceeded"


class NoChatTemplate(RequestError):
    """The model has no chat template, so only completions work."""

    code = "no_chat_template"


class HttpInvalid(RequestError):
    """A malformed HTTP request."""

    code = "http_invalid"


class TransferEncodingUnknown(QuireError):
    """The body is sent in a transfer encoding that this server does not read."""

    code = "http_invalid"
    http_status = 501
    ws_close_code = 4400
    type = "invalid_request_error"


class InvalidApiKey(RequestError):
    """The API key is missing or wrong."""

    code = "invalid_api_key"
    http_status = 401
    ws_close_code = 4401
    type = "authentication_error"


class PermissionDenied(RequestError):
    """The caller may not do this (for example a foreign WebSocket origin)."""

    code = "permission_denied"
    http_status = 403
    ws_close_code = 1008
    type = "permission_error"


class NotFound(RequestError):
    """No such path."""

    code = "not_found"
    http_status = 404
    type = "not_found_error"


class ModelNotFound(NotFound):
    """The named model is not served here."""

    code = "model_not_found"


class MethodNotAllowed(RequestError):
    """The path exists, the method does not."""

    code = "method_not_allowed"
    http_status = 405


class RequestTimeout(RequestError):
    """The request was not complete in time."""

    code = "request_timeout"
    http_status = 408
    ws_close_code = 4408
    type = "timeout_error"


class RequestTooLarge(RequestError):
    """The body or frame is larger than `max_request_bytes`."""

    code = "request_too_large"
    http_status = 413
    ws_close_code = 1009


class UrlTooLong(RequestTooLarge):
    """The URL is longer than 8 KiB."""

    http_status = 414


class HeadersTooLarge(RequestTooLarge):
    """The headers are more than 64 or larger than 16 KiB, those of a WebSocket handshake than 8 KiB."""

    http_status = 431


class UnsupportedMediaType(RequestError):
    """The body is not `application/json`, or it is compressed."""

    code = "unsupported_media_type"
    http_status = 415


class HostNotAllowed(RequestError):
    """The Host header names a host this server does not answer for."""

    code = "host_not_allowed"
    http_status = 421


class RateLimitExceeded(RequestError):
    """The client sends more than it may."""

    code = "rate_limit_exceeded"
    http_status = 429
    ws_close_code = 4429
    type = "rate_limit_error"


# --- The server's state: try again later ----------------------------------------------------------------------


class ServiceUnavailable(QuireError):
    """The server cannot take the request now; it may later."""

    http_status = 503
    ws_close_code = 4503
    type = "overloaded_error"
    retry_after_s = 1


class Overloaded(ServiceUnavailable):
    """The queue is full."""

    code = "overloaded"


class ModelLoading(ServiceUnavailable):
    """The model is still loading."""

    code = "model_loading"


class Draining(ServiceUnavailable):
    """The server is shutting down and takes no new work."""

    code = "draining"
    ws_close_code = 1012


class TimeIsOver(QuireError):
    """A time limit of the request has passed."""

    http_status = 504
    ws_close_code = 4503
    type = "timeout_error"


class QueueTimeout(TimeIsOver):
    """The request waited longer for its first step than it may (`queue_timeout`)."""

    code = "queue_timeout"


class DeadlineExceeded(TimeIsOver):
    """The answer was not complete when the request's time was over (`timeout`)."""

    code = "deadline_exceeded"


class EngineFailed(QuireError):
    """The engine failed while it worked on this request."""

    code = "engine_error"
