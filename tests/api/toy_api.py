"""A toy of an API: a wire, a route, and a shape of errors of its own."""

from __future__ import annotations

from collections import defaultdict

import msgspec
import pytest
from starlette.requests import Request
from starlette.types import ASGIApp

from app.api.body.new_answer import answer_post
from app.api.body.parse_chat import parse_chat
from app.api.body.schemas import ChatBody
from app.api.http.error_shape import ErrorShape
from app.api.routes.operations import OPERATIONS, Operation
from app.api.wire.wire import JsonBody
from app.contract.errors import ErrorInfo

PATH = "/toy/chat"


class ToyWire:
    """Each thing that happens is a word, with the text of a choice behind its number."""

    media_type = "text/toy"
    heartbeat = b"beat "

    def __init__(self):
        self.texts = defaultdict(str)

    def first(self, scored=None):
        yield b"first "

    def delta(self, delta):
        return f"{delta.choice}{delta.text} ".encode()

    def skip(self, delta):
        pass

    def finish(self, finished):
        return f"{finished.choice}={finished.reason} ".encode()

    def last(self, usage, span):
        return b"last %d" % usage.completion_tokens

    def error(self, error):
        return f"error {error.code}".encode()

    def keep(self, event):
        self.texts[event.choice] += event.text

    def whole(self, ends, usage, span):
        words = (f"{choice}{text} {ends[choice].reason} ".encode() for choice, text in self.texts.items())
        return JsonBody(iter([*words, b"%d" % usage.completion_tokens]), None)


class ToyError(msgspec.Struct):
    """An error, and the id of the request that has it."""

    wrong: str
    request: str

    @classmethod
    def of(cls, error: ErrorInfo, request_id: str) -> ToyError:
        """The error in the toy's shape."""
        return cls(error.code, request_id)


async def toy_chat(request: Request) -> ASGIApp:
    """Answer a chat with the toy's wire."""
    return await answer_post(request, parse_chat, lambda chat, framing: ToyWire())


TOY = Operation("POST", PATH, toy_chat, "A toy", None, (ChatBody,), errors=ErrorShape(ToyError, ToyError.of))


def add_toy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the applications of a test the toy's route."""
    monkeypatch.setattr("app.api.app.OPERATIONS", (*OPERATIONS, TOY))
