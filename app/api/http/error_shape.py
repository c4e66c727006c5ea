"""How APIs write errors, and which of them a path belongs to."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import msgspec

from app.contract.errors import ErrorInfo


class ErrorShape(NamedTuple):
    """How one API writes an error.

    Attributes:
        answer: the type of the JSON.
        fill: makes it of an error, and of the id of the request that has it.
        id_header: the name of the API for the header with that id, beside `x-request-id`; "" if it has none.
    """

    answer: type[msgspec.Struct]
    fill: Callable[[ErrorInfo, str], msgspec.Struct]
    id_header: str = ""


class ErrorFields(msgspec.Struct):
    """An error in OpenAI's shape."""

    message: str
    type: str
    param: str | None
    code: str


class ErrorAnswer(msgspec.Struct):
    """The body of every response with an error status, on the paths of OpenAI's API and on all that are no API's."""

    error: ErrorFields

    @classmethod
    def of(cls, error: ErrorInfo, request_id: str = "") -> ErrorAnswer:
        """Return an error in OpenAI's shape, which has no id of a request."""
        return cls(ErrorFields(error.message, error.type, error.param, error.code))


OPENAI_ERRORS = ErrorShape(ErrorAnswer, ErrorAnswer.of)


class ErrorShapes:
    """The shapes of errors by path: that of the API whose route it lies at or below, else OpenAI's. Any thread.

    `routes` are the paths of routes, which may end with parameters, and the shapes of their APIs.
    """

    def __init__(self, routes: Iterable[tuple[str, ErrorShape]] = ()) -> None:
        beginnings = {f"{path.partition('{')[0].rstrip('/')}/": shape for path, shape in routes}
        self._by_beginning = sorted(beginnings.items(), key=lambda each: len(each[0]), reverse=True)

    def of(self, path: str) -> ErrorShape:
        """Return the shape of errors at a path, which need not exist."""
        return next((shape for start, shape in self._by_beginning if f"{path}/".startswith(start)), OPENAI_ERRORS)


def error_body(error: ErrorInfo) -> bytes:
    """Return `{"error": {message, type, param, code}}` as JSON."""
    return msgspec.json.encode(ErrorAnswer.of(error))
