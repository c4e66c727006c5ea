"""Attacks by what coding agents may ask for: long conversations, many tools, responses that are kept or remembered."""

from __future__ import annotations

import asyncio
import json
import random
import re

from websockets.asyncio.client import ClientConnection

from benchmarks.isolation.attack import LARGEST
from benchmarks.isolation.attack_client import Client

RESPONSES, RESPONSE_TOKENS = "/v1/responses", "/v1/responses/input_tokens"
MESSAGES, MESSAGE_TOKENS = "/v1/messages", "/v1/messages/count_tokens"
NUM_ITEMS = 6000
NUM_BLOCKS = 8192
NUM_TOOLS, NUM_IN_NAMESPACE = 256, 16
NUM_HOPS = 1024
NUM_REMEMBERED = 16
NUM_WAITING = 8  # responses of a socket, beside the one that is answered
NUM_GETS = 100
_ID = re.compile(rb'"id":"(resp_[0-9a-f]{32})"')


def _tool(name: str, **fields: object) -> dict[str, object]:
    properties = {f"{name}_{number}": {"type": "string", "description": "A word."} for number in range(8)}
    parameters = {"type": "object", "properties": properties, "required": [*properties][:4]}
    return {"type": "function", "name": name, "description": "Does it.", "parameters": parameters, **fields}


def _user(text: str = "Go on.") -> dict[str, object]:
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}


def _response(**fields: object) -> bytes:
    return json.dumps({"max_output_tokens": 1, "store": False, **fields}).encode()


def items() -> bytes:
    """A conversation as Codex sends it: each turn is reasoning, a call, its result and a question."""
    turns: list[dict[str, object]] = []
    for number in range(NUM_ITEMS // 4):
        call_id = f"call_{number}"
        arguments = json.dumps({"command": ["ls", f"{number}"]})
        turns += [
            _user(f"Look at {number}."),
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "I look."}], "encrypted_content": None},
            {"type": "function_call", "name": "shell", "arguments": arguments, "call_id": call_id},
            {"type": "function_call_output", "call_id": call_id, "output": "a b"},
        ]
    return _response(input=turns, tools=[_tool("shell")])


def flat_tools() -> bytes:
    """As many tools as are allowed."""
    tools = [_tool(f"tool_{number}") for number in range(NUM_TOOLS)]
    return _response(input="Go on.", tools=tools)


def namespaces() -> bytes:
    """The same tools in namespaces, with names that must be shortened."""
    spaces = [
        {
            "type": "namespace",
            "name": "n" * 60 + str(space),
            "tools": [_tool(f"tool_{number}") for number in range(NUM_IN_NAMESPACE)],
        }
        for space in range(NUM_TOOLS // NUM_IN_NAMESPACE)
    ]
    return _response(input="Go on.", tools=spaces)


def large_call() -> bytes:
    """A call with 1 MB of arguments, which are many small values."""
    arguments = json.dumps({"values": [{"a": number} for number in range(70_000)]})
    call = {"type": "function_call", "name": "f", "arguments": arguments, "call_id": "call_1"}
    result = {"type": "function_call_output", "call_id": "call_1", "output": "Nothing."}
    return _response(input=[_user(), call, result])


def found_tools() -> bytes:
    """Deferred tools, and searches that find all of them again and again."""
    tools = [_tool(f"tool_{number}", defer_loading=True) for number in range(NUM_TOOLS - 1)]
    small = [{"type": "function", "name": f"tool_{number}"} for number in range(NUM_TOOLS - 1)]
    search: dict[str, object] = {"type": "tool_search", "execution": "client"}
    turns: list[dict[str, object]] = [_user()]
    for number in range(100):
        call_id = f"call_{number}"
        turns.append({"type": "tool_search_call", "call_id": call_id, "arguments": {"query": "all"}})
        turns.append({"type": "tool_search_output", "call_id": call_id, "tools": small})
    return _response(input=turns, tools=[search, *tools])


def cut_chat() -> bytes:
    """The longest chat, whose oldest turns are left out until it fits."""
    text = "every good word " * (LARGEST // 8192 // 16 - 8)
    turns = [
        {"role": "user" if number % 2 == 0 else "assistant", "content": f"{number} {text}"} for number in range(8191)
    ]
    return _response(input=turns, truncation="auto")


def blocks() -> bytes:
    """A conversation of 8,192 blocks of all kinds, in two messages of each turn."""
    turns: list[dict[str, object]] = []
    for number in range(NUM_BLOCKS // 8):
        call_id = f"toolu_{number}"
        document = {"type": "text", "media_type": "text/plain", "data": "A text."}
        turns += [
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "I look.", "signature": "a"},
                    {"type": "redacted_thinking", "data": "a"},
                    {"type": "text", "text": "I look."},
                    {"type": "tool_use", "id": call_id, "name": "look", "input": {"at": number}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": call_id, "content": [{"type": "text", "text": "a"}]},
                    {"type": "document", "source": document},
                    {"type": "search_result", "source": "a", "title": "b", "content": [{"type": "text", "text": "c"}]},
                    {"type": "text", "text": "Go on."},
                ],
            },
        ]
    tool = {"name": "look", "input_schema": {"type": "object", "properties": {"at": {"type": "integer"}}}}
    first = {"role": "user", "content": "Begin."}
    return json.dumps({"max_tokens": 1, "messages": [first, *turns], "tools": [tool]}).encode()


def long_message() -> bytes:
    """A prompt that is too long, whose length is told."""
    return json.dumps({"messages": [{"role": "user", "content": "every good word " * (LARGEST // 16)}]}).encode()


async def chain(client: Client) -> None:
    """Go on from the last response again and again: each one is kept, and all before it are read."""
    last = None
    for _ in range(NUM_HOPS):
        body = await client.post(RESPONSES, _response(input="Go on.", store=True, previous_response_id=last))
        found = _ID.search(body)
        if found is None:
            return
        last = found[1].decode()


async def silent_chain(client: Client) -> None:
    """Go on from responses with large inputs that say nothing: what the model reads stays short."""
    last = None
    silent = {"type": "reasoning", "summary": [], "encrypted_content": [{}] * 100_000}
    for _ in range(NUM_HOPS):
        fields = {"input": [_user(), silent], "store": True, "previous_response_id": last}
        found = _ID.search(await client.post(RESPONSES, _response(**fields)))
        if found is None:
            return
        last = found[1].decode()


async def remembered(client: Client) -> None:
    """Let a socket remember 16 responses with inputs of nearly 4 MB that say nothing, and go on from the last one."""
    opened = await client.responses_socket()
    silent = {"type": "reasoning", "summary": [], "encrypted_content": "a" * (LARGEST - 4096)}
    last = None
    for _ in range(NUM_REMEMBERED):
        last = await _ask(client, opened, input=[_user(), silent], previous_response_id=last, generate=False)
    for _ in range(NUM_HOPS):
        await _ask(client, opened, input=[_user()], previous_response_id=last, generate=False)
    await opened.close()


async def waiting(client: Client) -> None:
    """Let as many frames of 4 MB wait on a socket as may, behind a response that is never read."""
    opened = await client.responses_socket()
    await opened.send(_frame(input="Tell me a story.", max_output_tokens=100_000, ignore_eos=True))
    frame = _frame(input=[_user()], instructions="a" * (LARGEST - 4096))
    for _ in range(NUM_WAITING):
        await opened.send(frame)
    client.note("sent")
    await asyncio.sleep(3600)


async def background(client: Client) -> None:
    """Begin a response in the background that goes on to its limit, and look at it with many streams at once."""
    fields = {"input": f"{random.random()}", "store": True, "background": True, "ignore_eos": True}
    found = _ID.search(await client.post(RESPONSES, _response(**{**fields, "max_output_tokens": 1900})))
    if found is not None:
        path = f"{RESPONSES}/{found[1].decode()}?stream=true"
        await asyncio.gather(*(client.peek("GET", path) for _ in range(NUM_GETS)))


async def _ask(client: Client, opened: ClientConnection, **fields: object) -> str | None:
    """Send one frame, and read up to the end of its response; return its id, None if it was rejected."""
    await opened.send(_frame(**fields))
    async for text in opened:
        frame = json.loads(text)
        client.note(str(frame["type"]))
        if frame["type"] == "error":
            return None
        if frame["type"] in ("response.completed", "response.incomplete", "response.failed"):
            return str(frame["response"]["id"])
    raise EOFError


def _frame(**fields: object) -> str:
    return json.dumps({"type": "response.create", **fields})
