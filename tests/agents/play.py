"""Sends the transcript of a coding agent to a server, and tells what came back.

    python -m tests.agents.play http://127.0.0.1:8000 tests/agents/codex.json

The answers of the server are read and left: the next request has those of the transcript, as the agent had them. So any
model will do, and the prompts are the same each time.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

import httpx
from websockets.asyncio.client import connect

Body = dict[str, Any]
Events = Sequence[Mapping[str, Any]]
TIMEOUT_S = 240
_LIMITS = {"chat": "max_tokens", "messages": "max_tokens"}


class Answer(NamedTuple):
    """What came back for a request.

    Attributes:
        status: of HTTP; on a WebSocket that of the error frame, or 200.
        ignored: the fields named in `x-quire-ignored`; None where there is no header.
        prompt_tokens: of the whole prompt.
        cached_tokens: those of them that were in the cache.
        error: the text of the response, or the event, that says what went wrong.
        is_alone: the request is not a part of the conversation.
    """

    status: int
    ignored: tuple[str, ...] | None = ()
    prompt_tokens: int = 0
    cached_tokens: int = 0
    error: str | None = None
    is_alone: bool = False


class Request(NamedTuple):
    """A request's body, and whether it is not a part of the conversation."""

    body: Body
    is_alone: bool


def load(file: Path) -> dict[str, Any]:
    """Read a transcript."""
    transcript: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return transcript


def requests(transcript: Mapping[str, Any]) -> Iterator[Request]:
    """Yield the requests as the agent sends them; over a WebSocket each has what is new alone."""
    items: list[Any] = []
    for each in transcript["requests"]:
        is_alone = each.get("is_alone", False)
        if is_alone or transcript["wire"] == "responses_websocket":
            sent = each["adds"]
        else:
            sent = items = items + each["adds"]
        if transcript["wire"] == "messages":
            sent = _with_breakpoint(sent)
        body = {**transcript["body"], transcript["list"]: sent, **each.get("body", {})}
        yield Request({name: value for name, value in body.items() if value is not None}, is_alone)


def _with_breakpoint(messages: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Return messages whose last one of the user ends a cached prefix: it is a list of blocks now, and later a text."""
    last = max(number for number, message in enumerate(messages) if message["role"] == "user")
    content = messages[last]["content"]
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    blocks = [*blocks[:-1], {**blocks[-1], "cache_control": {"type": "ephemeral"}}]
    return [*messages[:last], {**messages[last], "content": blocks}, *messages[last + 1 :]]


async def play(transcript: Mapping[str, Any], base_url: str, *, max_tokens: int | None = None) -> list[Answer]:
    """Send all requests one after the other, and return what came back.

    With `max_tokens` answers have so many tokens, whatever the agent asks for.
    """
    limit = {} if max_tokens is None else {_LIMITS.get(transcript["wire"], "max_output_tokens"): max_tokens}
    async with httpx.AsyncClient(base_url=base_url, timeout=TIMEOUT_S) as client:
        model = (await client.get("/v1/models")).json()["data"][0]["id"]
        asked = [Request({**body, **limit, "model": model}, is_alone) for body, is_alone in requests(transcript)]
        if transcript["wire"] == "responses_websocket":
            return [answer async for answer in _over_socket(transcript, base_url, asked)]
        return [await _posted(transcript, client, request) for request in asked]


async def _posted(transcript: Mapping[str, Any], client: httpx.AsyncClient, request: Request) -> Answer:
    response = await client.post(transcript["path"], json=request.body, headers=transcript["headers"])
    ignored = tuple(map(unquote, filter(None, response.headers.get("x-quire-ignored", "").split(", "))))
    if response.status_code != httpx.codes.OK:
        return Answer(response.status_code, ignored, error=response.text, is_alone=request.is_alone)
    lines = (line.removeprefix("data:").strip() for line in response.text.splitlines() if line.startswith("data:"))
    events = [json.loads(line) for line in lines if line.startswith("{")]
    return _answer(response.status_code, ignored, transcript["wire"], events)._replace(is_alone=request.is_alone)


async def _over_socket(transcript: Mapping[str, Any], base_url: str, asked: Sequence[Request]) -> AsyncIterator[Answer]:
    url = base_url.replace("http", "ws", 1) + transcript["path"]
    previous: dict[str, str] = {}
    async with connect(url, additional_headers=transcript["headers"], max_size=None) as socket:
        for body, _ in asked:
            await socket.send(json.dumps({"type": "response.create", **body, **previous}))
            events = [event async for event in _frames(socket)]
            if "response" in events[-1]:
                previous = {"previous_response_id": events[-1]["response"]["id"]}
            yield _answer(events[-1].get("status", 200), None, "responses", events)


async def _frames(socket: Any) -> AsyncIterator[Mapping[str, Any]]:
    """Yield the frames of a response, up to the last one."""
    ends = ("response.completed", "response.incomplete", "response.failed", "error")
    while True:
        event = json.loads(await asyncio.wait_for(socket.recv(), TIMEOUT_S))
        yield event
        if event["type"] in ends:
            return


def _answer(status: int, ignored: tuple[str, ...] | None, wire: str, events: Events) -> Answer:
    failed = next((event for event in events if event.get("error") or event.get("type") == "response.failed"), None)
    if failed is not None:
        return Answer(status, ignored, error=json.dumps(failed))
    try:
        return Answer(status, ignored, *_USAGES[wire](events))
    except (LookupError, StopIteration) as error:
        return Answer(status, ignored, error=f"there is no usage ({error!r}) in {json.dumps(events[-2:])}")


def _usage_of_chat(events: Events) -> tuple[int, int]:
    usage = next(event["usage"] for event in reversed(events) if event.get("usage"))
    return usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]


def _usage_of_responses(events: Events) -> tuple[int, int]:
    usage = events[-1]["response"]["usage"]
    return usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"]


def _usage_of_messages(events: Events) -> tuple[int, int]:
    usage = next(event["usage"] for event in reversed(events) if event["type"] == "message_delta")
    cached = usage["cache_read_input_tokens"]
    return usage["input_tokens"] + cached, cached


_USAGES: Mapping[str, Callable[[Events], tuple[int, int]]] = {
    "chat": _usage_of_chat,
    "responses": _usage_of_responses,
    "messages": _usage_of_messages,
}


async def _main(base_url: str, file: str) -> int:
    answers = await play(load(Path(file)), base_url)
    for number, answer in enumerate(answers, 1):
        print(f"{number:3}  {answer}")
    return int(any(answer.error for answer in answers))


if __name__ == "__main__":
    sys.exit(asyncio.run(_main(*sys.argv[1:])))
