"""A client of kept responses in process, over a fake engine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
from starlette.applications import Starlette

from app.streaming.kept.live_stream import LiveStream
from tests.api.serving import client_of, make_app, until
from tests.fakes import FakeEngine, Script, turn_loop

PATH = "/v1/responses"
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
TEXT = f"<think>Hm, so.</think>\n\nLet me see.\n{CALL}"
LOGPROBS = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
TOOLS = [{"type": "function", "name": "f", "parameters": {"type": "object"}}]


def script(text: str = TEXT, size: int = 4) -> Script:
    """An answer in tokens of some characters."""
    return Script(answer=[text[start : start + size] for start in range(0, len(text), size)])


class KeptClient:
    """Sends requests for responses, and reads what is kept of them."""

    def __init__(self, app: Starlette, engine: FakeEngine, client: httpx.AsyncClient) -> None:
        self.app, self.engine, self.client = app, engine, client
        self.kept = app.state.context.kept

    async def create(self, given: Any = "Hi", **fields: Any) -> dict[str, Any]:
        """A whole response."""
        answer = await self.client.post(PATH, json={"input": given, **fields})
        assert answer.status_code == 200, answer.text
        body: dict[str, Any] = answer.json()
        return body

    async def error(self, method: str, path: str, status: int, **options: Any) -> dict[str, Any]:
        """The error that a request is answered."""
        answer = await self.client.request(method, path, **options)
        assert answer.status_code == status, answer.text
        error: dict[str, Any] = answer.json()["error"]
        return error

    async def get(self, response_id: str, **query: Any) -> httpx.Response:
        """A kept response."""
        return await self.client.get(f"{PATH}/{response_id}", params=query)

    async def running(self, **fields: Any) -> LiveStream:
        """A response in the background that has not ended, of a held engine."""
        body = await self.create(**{"background": True, **fields})
        await until(lambda: self.engine.requests)
        stream: LiveStream = self.kept.find(body["id"], None)
        return stream

    async def step(self, count: int = 1) -> None:
        """Let a held engine make tokens."""
        self.engine.step(count)
        await turn_loop()


@asynccontextmanager
async def kept_client(
    answer: Script | None = None, *, held: bool = False, **settings: Any
) -> AsyncIterator[KeptClient]:
    """A client for the time of the block."""
    engine = FakeEngine(answer or script(), held=held)
    app = await make_app(engine, **{"reasoning_parser": "think", **settings})
    async with client_of(app) as client:
        yield KeptClient(app, engine, client)


def events_of(body: bytes) -> list[bytes]:
    """The events of a stream, each with its bytes."""
    return [event + b"\n\n" for event in body.replace(b": \n", b"").split(b"\n\n")[:-1]]


def number_of(event: bytes) -> int:
    """The number of an event."""
    number: int = json.loads(event.split(b"data: ", 1)[1])["sequence_number"]
    return number


def begun(call: Any) -> asyncio.Task[Any]:
    """A call that goes on beside the test."""
    return asyncio.create_task(call)
