"""The exception tree: every error that a user can get, with its wire code, HTTP status and WebSocket close code.

A message says what was given, what is allowed and what to do. `param` is the path of the invalid field.
"""

from __future__ import annotations

from dataclasses import dataclass

from app.runtime.visible_text import visible

# Code that contains the failure of one request catches every exception except these. It catches BaseException because
# a panic inside a native library (tokenizers) is one, and must not end the thread that serves all requests.
NOT_OURS = (KeyboardInterrupt, SystemExit)


@dataclass(frozen=True, slots=True)
class ErrorInfo:
    """An error as plain data, to cross threads and to be sent on the wire."""

    code: str
    message: str
    param: str | None = None
    http_status: int = 500
    type: str = "server_error"
    retry_after_s: int | None = None


class QuireError(Exception):
    """Base of all errors meant for users; any other exception that is not caught is a bug."""

    code = "engine_error"
    http_status = 500
    ws_close_code = 1011
    type = "server_error"
    exit_code = 70  # of a command that ends with this error
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


# --- Configuration: raised at startup, before the server listens ---------------------------------------------


class ConfigurationError(QuireError):
    """A command line, setting or combination of settings that is rejected (exit code 2)."""

    code = "invalid_value"
    http_status = 400
    type = "invalid_request_error"
    exit_code = 2


class ModelRefused(ConfigurationError):
    """A model folder that is missing, damaged, unsupported or unsafe (exit code 2)."""


class CannotStart(QuireError):
    """The machine cannot start the server now: port in use, not enough memory (exit code 75)."""

    exit_code = 75


class Unreachable(CannotStart):
    """A model must be downloaded, but there is no network, or the server of the model does not answer."""


# --- Requests: the client's mistake --------------------------------------------------------------------------


class RequestError(QuireError):
    """A request that is rejected because of its content."""

    code = "invalid_value"
    http_status = 400
    ws_close_code = 4400
    type = "invalid_request_error"
    exit_code = 2


class JsonInvalid(RequestError):
    """The body is not one JSON object."""

    code = "json_invalid"


class InvalidValue(RequestError):
    """A known field has an invalid value, or a grammar costs too much."""


class GrammarTooCostly(InvalidValue):
    """A grammar that has taken too much time or memory, when it was compiled or for the tokens of an answer."""


class UnsupportedParameter(RequestError):
    """A known parameter or feature that this server does not support."""

    code = "unsupported_parameter"


class ContextLengthExceeded(RequestError):
    """The prompt, with its output if it has one, is longer than the model's context.

    Attributes:
        num_prompt_tokens: the length of a prompt that does not fit even without output, or less; None of others.
    """

    code = "context_length_exceeded"
    num_prompt_tokens: int | None = None


class KVCapacityExceeded(RequestError):
    """The request does not fit the KV cache, even as the only one.

    Attributes:
        num_prompt_tokens: see `ContextLengthExceeded`.
    """

    code = "kv_capacity_exceeded"
    num_prompt_tokens: int | None = None


class NoChatTemplate(RequestError):
    """The model has no chat template, so only completions work."""

    code = "no_chat_template"


class HttpInvalid(RequestError):
    """A malformed HTTP request."""

    code = "http_invalid"


class TransferEncodingUnknown(QuireError):
    """The body has a transfer encoding that this server does not support."""

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
    """The client is not allowed to do this (for example, to open a WebSocket from a foreign origin)."""

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
    """This server does not serve a model of that name."""

    code = "model_not_found"


class StreamNotFound(NotFound):
    """There is no such stream: it never was, is of another key, or is not kept any longer."""

    code = "stream_not_found"


class PreviousResponseNotFound(RequestError):
    """There is no response of that id to go on from: it never was, is of another key, or is not kept."""

    code = "previous_response_not_found"


class ResponseInProgress(RequestError):
    """The response to go on from has not ended yet; try again when it has."""

    code = "response_in_progress"
    http_status = 409


class StreamCancelled(RequestError):
    """The stream was cancelled by its client."""

    code = "stream_cancelled"
    http_status = 409


class IdempotencyConflict(RequestError):
    """An idempotency key was used before, for another request."""

    code = "idempotency_conflict"
    http_status = 409


class MethodNotAllowed(RequestError):
    """The path does not support this method."""

    code = "method_not_allowed"
    http_status = 405


class RequestTimeout(RequestError):
    """The request was not received completely in time."""

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
    """There are more than 64 headers, or they are larger than 16 KiB (of a WebSocket handshake: 8 KiB)."""

    http_status = 431


class UnsupportedMediaType(RequestError):
    """The body is not `application/json`, or it is compressed."""

    code = "unsupported_media_type"
    http_status = 415


class HostNotAllowed(RequestError):
    """The Host header names a host that is not in `allowed_hosts`."""

    code = "host_not_allowed"
    http_status = 421


class RateLimitExceeded(RequestError):
    """The client exceeds a limit of connections, messages, paused streams, or grammars that cost too much."""

    code = "rate_limit_exceeded"
    http_status = 429
    ws_close_code = 4429
    type = "rate_limit_error"


# --- The server's state: try again later ----------------------------------------------------------------------


class ServiceUnavailable(QuireError):
    """The server cannot accept the request now, but may accept it later."""

    http_status = 503
    ws_close_code = 4503
    type = "overloaded_error"
    retry_after_s = 1


class Overloaded(ServiceUnavailable):
    """The queue is full, too much data is pending for slow clients, or the server is under sustained load; or too many
    large bodies of the sender are on their way; or there is no room for another grammar, or the system lacks
    descriptors, processes or memory to try a new one.
    """

    code = "overloaded"


class ModelLoading(ServiceUnavailable):
    """The model is still loading."""

    code = "model_loading"


class Draining(ServiceUnavailable):
    """The server is shutting down and accepts no new requests."""

    code = "draining"
    ws_close_code = 1012


class TimeLimitExceeded(QuireError):
    """A time limit of the request has passed."""

    http_status = 504
    ws_close_code = 4503
    type = "timeout_error"


class QueueTimeout(TimeLimitExceeded):
    """The request waited longer than `queue_timeout` for its first step."""

    code = "queue_timeout"


class DeadlineExceeded(TimeLimitExceeded):
    """The output was not complete within the request's `timeout`."""

    code = "deadline_exceeded"


class EngineFailed(QuireError):
    """The engine failed while it processed this request."""

    code = "engine_error"


def error_line(program: str, message: str) -> str:
    """Return the line on stderr with which `program` reports an expected failure, without a line end."""
    return f"{program}: error: {visible(' '.join(message.split()))}"


def client_codes() -> tuple[str, ...]:
    """Return the codes of the errors that clients can get, each once. Any thread."""
    kinds = [QuireError]
    for kind in kinds:  # grows
        kinds += [each for each in kind.__subclasses__() if each not in (ConfigurationError, CannotStart)]
    return tuple(dict.fromkeys(kind.code for kind in kinds))
