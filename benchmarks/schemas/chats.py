"""Asks a server through the stock `openai` client, every second question streamed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from openai import AsyncOpenAI

AT_ONCE = 16
TIMEOUT_S = 3600.0  # of one answer: it ends a run that hangs, and no run on a busy machine


class Call(NamedTuple):
    """A call of a tool, as in the answer."""

    id: str
    name: str
    arguments: str


class Answer(NamedTuple):
    """What a chat answered; `finish_reason` is empty where it failed, and `content` then the error."""

    content: str
    calls: tuple[Call, ...]
    finish_reason: str


async def ask_all(url: str, bodies: Sequence[Mapping[str, Any]]) -> list[Answer]:
    """Answer chats, AT_ONCE at a time and never twice; errors of the API are answers without a finish reason."""
    limit = asyncio.Semaphore(AT_ONCE)
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=TIMEOUT_S) as client:

        async def ask(index: int, body: Mapping[str, Any]) -> Answer:
            async with limit:
                try:
                    return await (_streamed if index % 2 else _whole)(client, body)
                except Exception as error:  # a failure is a result here
                    return Answer(f"{type(error).__name__}: {error}", (), "")

        return await asyncio.gather(*(ask(index, body) for index, body in enumerate(bodies)))


async def _whole(client: AsyncOpenAI, body: Mapping[str, Any]) -> Answer:
    choice = (await client.chat.completions.create(**body)).choices[0]
    calls = [Call(call.id, call.function.name, call.function.arguments) for call in choice.message.tool_calls or ()]
    return Answer(choice.message.content or "", tuple(calls), choice.finish_reason)


async def _streamed(client: AsyncOpenAI, body: Mapping[str, Any]) -> Answer:
    content, finish_reason, calls = "", "", dict[int, Call]()
    async for chunk in await client.chat.completions.create(**body, stream=True):
        for choice in chunk.choices:
            content += choice.delta.content or ""
            finish_reason = choice.finish_reason or finish_reason
            for piece in choice.delta.tool_calls or ():
                known, function = calls.get(piece.index, Call("", "", "")), piece.function
                calls[piece.index] = Call(
                    known.id or piece.id or "",
                    known.name or function.name or "",
                    known.arguments + (function.arguments or ""),
                )
    return Answer(content, tuple(calls[index] for index in sorted(calls)), finish_reason)
