"""Two keys on a real engine: no byte that shows the engine to one has an id, a text or a salt of the other.

Each search is of bytes in which the watcher's own secrets are found, or would be: the own id is in them, and the texts
and salts are in those of the chats.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import ClientConnection, connect

from app.client.live_picture import LivePicture
from app.contract.live_state import LIVE_PROTOCOL
from tests.api.serving import until
from tests.server.processes import HANG_S
from tests.server.quick_start import serving

KEYS = {"anna": "key-of-anna-4711", "boris": "key-of-boris-0815"}
CREDIT = 40
PIECE = 10  # characters: no name of a field has so many of a text


@dataclass
class Person:
    """One with a key, a chat that waits for its reader, and what is seen of the engine meanwhile."""

    name: str
    chat: ClientConnection
    watcher: ClientConnection
    picture: LivePicture = field(default_factory=LivePicture)
    written: bytearray = field(default_factory=bytearray)  # to the chat
    read: bytearray = field(default_factory=bytearray)  # of the chat
    seen: bytearray = field(default_factory=bytearray)  # of the engine
    text: str = ""
    id: str = ""

    @property
    def question(self) -> str:
        """The question of the chat."""
        return f"What is Quire? Asked by {self.name} of Bielefeld."

    @property
    def salt(self) -> str:
        """The salt of the chat."""
        return f"salt-of-{self.name}-Zx9"

    async def ask(self) -> None:
        """Begin an answer, and read what the credit allows."""
        request = {
            "messages": [{"role": "user", "content": self.question}], "ignore_eos": True, "max_tokens": 1500,
            "cache_salt": self.salt, "user": self.name,
        }  # fmt: skip
        await self._say(t="hello", protocol="quire.v1")
        await self._say(t="start", id="1", request=request, credit=CREDIT)
        num_tokens = 0
        while num_tokens < CREDIT:
            frame = await self._hear()
            if frame["t"] == "delta":
                num_tokens = frame["n"] + frame["k"] - 1
                self.text += frame["x"]

    async def cancel(self) -> None:
        """End the answer."""
        await self._say(t="cancel", id="1")

    async def look_until(self, *states: str) -> None:
        """Watch until the engine has requests in these states and no others."""
        while self.picture.state is None or sorted(group.state for group in self.picture.state.groups) != [*states]:
            message = await self.watcher.recv(decode=False)
            self.seen += message
            self.picture.receive(message)
        self.id = next((group.id for group in self.picture.state.groups if group.own), self.id)

    def secrets(self) -> list[bytes]:
        """What only this person may learn: id, key, salt, and each piece of the texts."""
        pieces = [text[at : at + PIECE] for text in (self.question, self.text) for at in range(len(text) - PIECE + 1)]
        return [text.encode() for text in [self.id.removeprefix("chatcmpl-"), KEYS[self.name], self.salt, *pieces]]

    async def _say(self, **frame: Any) -> None:
        await self.chat.send(text := json.dumps(frame))
        self.written += text.encode()

    async def _hear(self) -> dict[str, Any]:
        text = await self.chat.recv(decode=False)
        self.read += text
        frame: dict[str, Any] = json.loads(text)
        return frame


async def person(stack: AsyncExitStack, url: str, name: str) -> Person:
    """One who is connected to a server's chat and its live view."""

    async def opened(path: str, protocol: str) -> ClientConnection:
        options: dict[str, Any] = {"subprotocols": [protocol], "compression": None, "proxy": None, "max_size": None}
        headers = {"authorization": f"Bearer {KEYS[name]}"}
        address = url.replace("http", "ws") + path
        return await stack.enter_async_context(connect(address, additional_headers=headers, **options))

    return Person(name, await opened("/ws", "quire.v1"), await opened("/live", LIVE_PROTOCOL))


async def read_figures(url: str, key: str, seen: bytearray) -> None:
    """Read the figures of the engine into `seen`, without end."""
    address, headers = f"{url}/v1/engine/events?interval=0.2", {"authorization": f"Bearer {key}"}
    async with (
        httpx.AsyncClient(timeout=HANG_S, trust_env=False, verify=False) as client,
        client.stream("GET", address, headers=headers) as response,
    ):
        async for part in response.aiter_bytes():
            seen += part


async def both(people: list[Person], act: Callable[[Person], Awaitable[None]]) -> None:
    async with asyncio.timeout(HANG_S), asyncio.TaskGroup() as group:
        for each in people:
            group.create_task(_awaited(act(each)))


async def _awaited(act: Awaitable[None]) -> None:
    await act


def found(secrets: list[bytes], data: bytes | bytearray) -> list[bytes]:
    return [secret for secret in secrets if secret in data]


@pytest.mark.parametrize("view", ["own", "all"])
async def test_no_byte_of_the_engine_has_an_id_a_text_or_a_salt_of_another_key(view: str):
    options = [word for key in KEYS.values() for word in ("--api-key", key)]
    with serving("--num-kv-blocks", "200", "--live-view", view, *options) as server:
        server.wait_until_ready()
        async with AsyncExitStack() as stack:
            people = [await person(stack, server.url, name) for name in KEYS]
            figures = {each.name: bytearray() for each in people}
            reading = [
                asyncio.create_task(read_figures(server.url, KEYS[name], seen)) for name, seen in figures.items()
            ]
            await both(people, lambda each: each.ask())
            await both(people, lambda each: each.look_until("paused", "paused"))
            owners = {each.name: {*each.picture.owners} - {0} for each in people}
            await until(lambda: all(b'"paused":2' in seen for seen in figures.values()))
            await both(people, lambda each: each.cancel())
            await both(people, lambda each: each.look_until())
            for task in reading:
                task.cancel()
            await asyncio.gather(*reading, return_exceptions=True)
    for one, other in (people, people[::-1]):
        assert one.id and one.text and one.id != other.id
        # What is searched for is what was sent, and an id would be found.
        assert found(one.secrets(), one.seen) == [one.id.removeprefix("chatcmpl-").encode()]
        assert one.question.encode() in one.written and one.salt.encode() in one.written
        assert other.text[:4].encode() in other.read
        assert found(other.secrets(), one.seen) == []
        assert found([*one.secrets(), *other.secrets()], figures[one.name]) == []
        # Whose the blocks are is said of one's own, or of all.
        assert len(owners[one.name]) == (1 if view == "own" else 2)


async def test_totals_tell_of_another_key_what_the_pages_say():
    """To every key they are the same: of the only client, the exact sizes of its prompt and its answer."""
    options = [word for key in KEYS.values() for word in ("--api-key", key)]
    with serving("--num-kv-blocks", "200", "--live-view", "own", *options) as server:
        server.wait_until_ready()
        async with httpx.AsyncClient(base_url=server.url, timeout=HANG_S, trust_env=False) as client:
            body = {"messages": [{"role": "user", "content": "What is Quire?"}], "max_tokens": 5, "ignore_eos": True}
            chat = await client.post("/v1/chat/completions", json=body, headers=headers_of("anna"))
            metrics = await client.get("/metrics", headers=headers_of("boris"))
    usage = chat.json()["usage"]
    totals = {
        name: int(float(value))
        for name, value in re.findall(r"^vllm:(\w+_tokens)_total{.*} (\S+)$", metrics.text, re.M)
    }
    assert (totals["prompt_tokens"], totals["generation_tokens"]) == (usage["prompt_tokens"], 5)


def headers_of(name: str) -> dict[str, str]:
    """What a request with a person's key has."""
    return {"authorization": f"Bearer {KEYS[name]}"}
