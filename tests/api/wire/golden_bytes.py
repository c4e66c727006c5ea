"""The bytes of answers over HTTP: `python -m tests.api.wire.golden_bytes` writes them anew.

Held are the routes of chats, texts, messages, responses, vectors, tokens, models and health, with each framing, and the
errors that the application makes of their requests, by status: 400, 401, 404, 405, 413, 415, 421, 429, 500, 503, 504.
Ids and times are the same in each run.

Elsewhere are heartbeats, whose number depends on the machine (`test_stream_response`), what is rejected before the
application (408, 414, 431, 501: `tests/server`), kept streams, the page, /metrics and /openapi.json.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any
from unittest.mock import patch

from app.contract.engine_status import EngineState
from app.contract.errors import DeadlineExceeded, Draining, ErrorInfo, Overloaded, QuireError, RateLimitExceeded
from app.contract.events import Usage
from tests.api.serving import JSON, client_of, make_app
from tests.fakes import FakeEngine, Script

GOLDEN = Path(__file__).with_suffix(".txt")
TITLE = "#### "
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
SSE, NDJSON = "text/event-stream", "application/x-ndjson"
USER = {"role": "user", "content": "Hi"}
WARM = {"name": "warm", "description": "How warm is it?", "parameters": {"type": "object", "properties": {}}}
TOOLS = {"tools": [{"type": "function", "function": WARM}]}
CALLS = "One.\u2028" + '<tool_call>{"name": "warm", "arguments": {"é": 1}}</tool_call>' * 2
ANSWERS = ("<think>Hm\x85 m.</think>\n\n" + CALLS, "<think>So.</think>It is <b>warm.", "Warm.")
SCRIPT = Script([CALLS[i : i + 9] for i in range(0, len(CALLS), 9)])
REASONED, *OTHERS = ([answer[i : i + 7] for i in range(0, len(answer), 7)] for answer in ANSWERS)
BROKEN = ErrorInfo("engine_error", "It broke „here“.")
LATE = Script(fail_after=0, error=DeadlineExceeded("Late.").info())
REFUSALS = (Overloaded("Full."), Overloaded("Hot.", retry_after_s=9), Draining("End."), RateLimitExceeded("Wait."))
NO_TEXT = Script(["", "a", "", "", "b"], usage=Usage(0, 0, cached_tokens=2))
BOTH = {
    "usage": {"stream_options": {"include_usage": True}},
    "usage in chunks": {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    "n": {"n": 2},
    "ids": {"return_token_ids": True},
    "scored": {"prompt_logprobs": 2},
    "timings": {"timings": True},
}
FEATURES: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    CHAT: {**BOTH, "logprobs": {"logprobs": True, "top_logprobs": 2}},
    TEXT: {
        **BOTH,
        "logprobs": {"logprobs": 2},
        "prompts": {"prompt": [[300, 301, 302], [303, 304]]},
        "echo": {"echo": True},
        "no tokens": {"max_tokens": 0, "echo": True},
        "ranked": {"best_of": 3},
    },
}
BOTH_FRAMINGS = ("", "usage in chunks", "scored", "ids", "calls", "failed after 2", "crashed")
BODIES: Mapping[str, Mapping[str, Any]] = {
    CHAT: {"messages": [USER], "max_tokens": 4},
    TEXT: {"prompt": [300, 301], "max_tokens": 4},
}


@dataclass(frozen=True)
class Case:
    """A request, what the engine does with it, and the settings of the server."""

    path: str
    body: Mapping[str, Any] | bytes | None = None  # bytes have no content type but that of `headers`
    accept: str = SSE
    script: Script = field(default_factory=Script)
    settings: Mapping[str, Any] = field(default_factory=dict)
    method: str = ""  # by default GET, or POST with a body
    headers: Mapping[str, str] = field(default_factory=dict)
    state: EngineState = EngineState.READY
    refusal: QuireError | None = None  # of the engine

    async def bytes(self) -> str:
        """The status, the headers that are ours, and the body."""
        ids, now = patch("secrets.token_hex", lambda size: "1"), patch("time.time", lambda: 17e8)
        engine = FakeEngine(self.script)
        engine.port.state = self.state
        refuse = patch.object(engine, "submit_all", side_effect=self.refusal) if self.refusal else nullcontext()
        app = await make_app(engine, **self.settings)
        method = self.method or ("GET" if self.body is None else "POST")
        sent: Any = {"content" if isinstance(self.body, bytes) else "json": self.body}
        with ids, now, refuse:
            async with client_of(app, accept=self.accept, **self.headers) as client:
                answer = await client.request(method, self.path, **sent)
        ours = [(name, value) for name, value in sorted(answer.headers.items()) if name != "x-request-id"]
        return f"{answer.status_code} {json.dumps(ours)}\n{answer.content.decode()}"


def cases(num_together: int = 1) -> Iterator[tuple[str, Case]]:
    """Each route with each feature, or with so many features together, and with all; then tools, errors, the rest."""
    for path, features in FEATURES.items():
        for names in dict.fromkeys([(), *combinations(features, num_together), tuple(features)]):
            body = {key: value for name in names for key, value in features[name].items()}
            yield from each_framing(" + ".join(names), path, body)
    yield from parsed_cases()
    yield from message_cases()
    yield from failed_cases()
    yield from other_routes()
    yield from response_cases()
    yield from refused_cases()
    yield from missing_routes()


def each_framing(name: str, path: str, fields: Mapping[str, Any], **others: Any) -> Iterator[tuple[str, Case]]:
    """A request whole, and streamed as server-sent events; some also as lines of JSON, which have the same payloads."""
    body = {**BODIES[path], **fields}
    route = "chat" if path == CHAT else "text"
    streamed = {**body, "stream": True}
    yield f"{route}, whole: {name}", Case(path, {k: v for k, v in body.items() if k != "stream_options"}, **others)
    yield f"{route}, SSE: {name}", Case(path, streamed, **others)
    if name in BOTH_FRAMINGS:
        yield f"{route}, NDJSON: {name}", Case(path, streamed, NDJSON, **others)


def parsed_cases() -> Iterator[tuple[str, Case]]:
    """Answers with reasoning and calls."""
    features, limit = FEATURES[CHAT], {"max_tokens": 99}
    every = {key: value for one in features.values() for key, value in one.items()} | {
        "top_logprobs": 0,
        "max_tokens": 6,
    }
    yield from each_framing("calls", CHAT, TOOLS | limit, script=SCRIPT)
    yield from each_framing("calls + ids", CHAT, TOOLS | limit | features["ids"], script=SCRIPT)
    reasoned = Script(REASONED, others=OTHERS, usage=Usage(0, 0, cached_tokens=2))
    for name, fields, field_names in (
        ("reasoning, calls", {**TOOLS, "n": 3}, "reasoning_content"),
        ("reasoning, calls, both names", TOOLS, "both"),
        ("reasoning, calls + usage in chunks", TOOLS | features["usage in chunks"], "both"),
        ("reasoning left out", {"include_reasoning": False, "n": 2} | features["usage"], "both"),
        ("reasoning, calls + everything", TOOLS | every, "both"),
    ):
        settings = {"reasoning_parser": "think", "reasoning_field": field_names}
        yield from each_framing(name, CHAT, {**limit, **fields}, script=reasoned, settings=settings)


def message_cases() -> Iterator[tuple[str, Case]]:
    """Answers, counts and errors of Anthropic's API."""
    path, settings = "/v1/messages", {"reasoning_parser": "think"}
    tools = {"tools": [{"name": "warm", "description": "How warm is it?", "input_schema": WARM["parameters"]}]}
    body = {"messages": [USER], "max_tokens": 99}
    for name, fields, script in (
        ("plain", {"max_tokens": 4, "loudness": "lòw"}, Script()),
        ("tokens without text", {}, NO_TEXT),
        ("reasoning, calls", tools, Script(REASONED, usage=Usage(0, 0, cached_tokens=2))),
        ("no tokens", {"max_tokens": 0}, Script()),
        ("failed after 0", {}, Script(fail_after=0, error=BROKEN)),
        ("failed after 2", {}, Script(fail_after=2, error=BROKEN)),
        ("too late", {}, LATE),
    ):
        yield f"messages, whole: {name}", Case(path, {**body, **fields}, script=script, settings=settings)
        streamed = {**body, **fields, "stream": True}
        yield f"messages, SSE: {name}", Case(path, streamed, script=script, settings=settings)
    yield "messages: count", Case(f"{path}/count_tokens", {"messages": [USER], **tools})
    yield "messages: rejected", Case(path, {**body, "temperature": "warm"})
    yield "messages: too long", Case(path, {**body, "messages": [{"role": "user", "content": "Hi " * 4000}]})
    yield "messages: no key", Case(path, body, settings={"api_key": ("secret",)})
    yield "messages: GET", Case(path)


def failed_cases() -> Iterator[tuple[str, Case]]:
    """Tokens without text, failures of the engine, and rejected bodies."""
    for path in (CHAT, TEXT):
        limit = {"max_tokens": 9, "loudness": "lòw"}
        yield from each_framing("tokens without text", path, limit, script=NO_TEXT)
        yield from each_framing("tokens without text + ids", path, limit | BOTH["ids"], script=NO_TEXT)
        for fail_after in (0, 2):
            script = Script(fail_after=fail_after, error=BROKEN)
            yield from each_framing(f"failed after {fail_after}", path, {"n": 2}, script=script)
        yield from each_framing("crashed", path, {}, script=Script(crash_after=1))
        yield from each_framing("rejected", path, {"temperature": "warm"})
        yield from each_framing("another model", path, {"model": "x"})


def other_routes() -> Iterator[tuple[str, Case]]:
    """Routes that generate nothing, and paths that are none."""
    for path in ("/livez", "/readyz", "/health", "/version", "/v1/models", "/v1/models/guide", "/v1/models/x", "/x"):
        yield path, Case(path)
    bodies: list[tuple[str, Mapping[str, Any]]] = [
        ("/tokenize", {"prompt": "Hi é"}),
        ("/tokenize", {"prompt": "Hi", "return_token_strs": True, "loudness": 1}),
        ("/tokenize", {"messages": [USER]}),
        ("/tokenize", {"content": "Hi", "with_pieces": True}),
        ("/detokenize", {"tokens": [300, 301]}),
        ("/apply-template", {"messages": [USER]}),
        (CHAT + "/input_tokens", {"messages": [USER]}),
        ("/v1/embeddings", {"input": ["Hi", "ho"], "dimensions": 3}),
        ("/v1/embeddings", {"input": "Hi", "encoding_format": "base64"}),
        ("/v1/embeddings", {"input": []}),
    ]
    for path, body in bodies:
        yield f"{path} {json.dumps(body)}", Case(path, body)


def response_cases() -> Iterator[tuple[str, Case]]:
    """Answers, counts and errors of OpenAI's Responses API."""
    path, settings = "/v1/responses", {"reasoning_parser": "think"}
    inner = {"type": "namespace", "name": "home", "tools": [{"type": "function", **WARM}]}
    tools = {"tools": [{"type": "function", **WARM}, inner, {"type": "web_search"}], "instructions": "Be brief."}
    reasoned = Script(REASONED, usage=Usage(0, 0, cached_tokens=2))
    for name, fields, script in (
        ("plain", {"max_output_tokens": 4, "loudness": "lòw"}, Script()),
        ("tokens without text", {}, NO_TEXT),
        ("reasoning, calls", tools, reasoned),
        ("summary, timings", {**tools, "reasoning": {"summary": "auto"}, "timings": True}, reasoned),
        ("logprobs", {"include": ["message.output_text.logprobs"], "top_logprobs": 1}, NO_TEXT),
        ("cut", {**tools, "max_output_tokens": 9}, reasoned),
        ("failed after 0", {}, Script(fail_after=0, error=BROKEN)),
        ("failed after 2", {}, Script(fail_after=2, error=BROKEN)),
    ):
        body = {"input": "Hi", **fields}
        yield f"response, whole: {name}", Case(path, body, script=script, settings=settings)
        yield f"response, SSE: {name}", Case(path, {**body, "stream": True}, script=script, settings=settings)
    yield "response: count", Case(f"{path}/input_tokens", {"input": [USER], **tools})
    yield "response: rejected", Case(path, {"input": [USER, {"role": "robot", "content": "Hi"}]})
    yield "response: nothing kept", Case(path, {"input": "Hi", "previous_response_id": "resp_1"})
    yield "response: GET", Case(path)


def refused_cases() -> Iterator[tuple[str, Case]]:
    """Requests that are refused for their key, host, method or body, or by the engine."""
    keys, small = {"api_key": ("secret",)}, {"max_request_bytes": 1024}
    bodies: list[tuple[str, Mapping[str, Any]]] = [*BODIES.items(), ("/v1/embeddings", {"input": "Hi"})]
    for path, body in bodies:
        yield f"{path}: no key", Case(path, body, settings=keys)
        yield f"{path}: another key", Case(path, body, settings=keys, headers={"x-api-key": "other"})
        yield f"{path}: another host", Case(path, body, headers={"host": "other.example"})
        yield f"{path}: no host", Case(path, body, headers={"host": "a b"})
        yield f"{path}: GET", Case(path)
        yield f"{path}: no JSON", Case(path, b"{", headers=JSON)
        yield f"{path}: no type", Case(path, b"{}")
        yield f"{path}: too large", Case(path, b" " * 1025, settings=small, headers=JSON)
        for state in (EngineState.LOADING, EngineState.FAILED):
            yield f"{path}: {state}", Case(path, body, state=state)
        yield f"{path}: too late", Case(path, body, script=LATE)
        for error in REFUSALS:
            yield f"{path}: {error.code} {error.retry_after_s}", Case(path, body, refusal=error)
    for path in ("/readyz", "/health", "/livez"):
        yield f"{path}: loading", Case(path, state=EngineState.LOADING)
        yield f"{path}: failed", Case(path, state=EngineState.FAILED)
    yield "/v1/models: no key", Case("/v1/models", settings=keys)
    yield "/v1/models: another host", Case("/v1/models", headers={"host": "other.example"})
    yield "/tokenize: DELETE", Case("/tokenize", method="DELETE")


def missing_routes() -> Iterator[tuple[str, Case]]:
    """Paths that are mistyped, or belong to another API."""
    for path in ("/models", "/v1/v1/models", "/v1/models/", "/v1/modelss", "/v1/model", "/api/tags", "/v1/realtime"):
        yield path, Case(path)
    chats = ("/chat/completions", "/v1/v1/chat/completions", "/v1/messages/batches", "/api/chat")
    for path in ("/v1", *chats, "/rerank", "/v1/responses/compact", "/x"):
        yield f"POST {path}", Case(path, BODIES[CHAT])


async def all_bytes(num_together: int = 1) -> dict[str, str]:
    """The bytes of all cases, by name."""
    return {name: await case.bytes() for name, case in cases(num_together)}


def write(found: Mapping[str, str]) -> None:
    """Write the golden bytes, each response below its name."""
    GOLDEN.write_bytes("".join(f"{TITLE}{name}\n{text}\n" for name, text in found.items()).encode())


def read() -> dict[str, str]:
    """Read what `write` has written."""
    sections = (one.partition("\n") for one in ("\n" + GOLDEN.read_bytes().decode()).split(f"\n{TITLE}")[1:])
    *most, (name, _, text) = sections
    return {name: text for name, _, text in most} | {name: text.removesuffix("\n")}


if __name__ == "__main__":
    write(asyncio.run(all_bytes()))
