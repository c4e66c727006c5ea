"""Errors as Anthropic's API writes them."""

from __future__ import annotations

from typing import Literal

import msgspec

from app.api.http.error_shape import ErrorShape
from app.contract.errors import ContextLengthExceeded, ErrorInfo, KVCapacityExceeded

REQUEST_ID = "request-id"
"""The name of Anthropic's API for the header with the id of a request."""
_PLAIN = (ContextLengthExceeded.code, KVCapacityExceeded.code)
"""Errors that clients know by the beginning of their message."""

ErrorType = Literal[
    "invalid_request_error",
    "authentication_error",
    "permission_error",
    "not_found_error",
    "rate_limit_error",
    "api_error",
    "overloaded_error",
    "timeout_error",
]
_BY_STATUS: dict[int, ErrorType] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


class MessageErrorFields(msgspec.Struct):
    """An error; its message begins with the path of the field that is wrong, if there is one."""

    type: ErrorType
    message: str

    @classmethod
    def of(cls, error: ErrorInfo) -> MessageErrorFields:
        """Return an error without its parameter, which only the message has."""
        path, message = error.param, error.message
        if path is not None and path not in message and error.code not in _PLAIN:
            message = f"{path}: {message}"
        otherwise: ErrorType = "api_error" if error.http_status >= 500 else "invalid_request_error"
        return cls(_BY_STATUS.get(error.http_status, otherwise), message)


class MessageError(msgspec.Struct):
    """The body of every response with an error status on the paths of Anthropic's API."""

    type: Literal["error"]
    error: MessageErrorFields
    request_id: str

    @classmethod
    def of(cls, error: ErrorInfo, request_id: str) -> MessageError:
        """Return an error in Anthropic's shape."""
        return cls("error", MessageErrorFields.of(error), request_id)


ANTHROPIC_ERRORS = ErrorShape(MessageError, MessageError.of, REQUEST_ID)
