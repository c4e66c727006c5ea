"""A stream is the whole answer in pieces: on every route with each feature, with each two of them, and with all."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import Any

import pytest

from tests.api.routes.test_tools import ANSWERS, TOOLS, USER, app_with, without_ids
from tests.api.serving import client_of, make_app
from tests.fakes import FakeEngine

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
BOTH = {
    "n": {"n": 2},
    "token ids": {"return_token_ids": True},
    "scored prompt": {"prompt_logprobs": 2},
    "usage in chunks": {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    "timings": {"timings": True},
}
FEATURES: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    CHAT: {**BOTH, "tools": {"tools": TOOLS}, "logprobs": {"logprobs": True, "top_logprobs": 2}},
    TEXT: {
        **BOTH,
        "prompts": {"prompt": [[300, 301, 302], [303, 304]]},
        "echo": {"echo": True},
        "logprobs": {"logprobs": 2},
        "no tokens": {"max_tokens": 0, "echo": True},
        "ranked": {"best_of": 3},
    },
}
BODIES = {CHAT: {"messages": [USER]}, TEXT: {"prompt": [300, 301], "max_tokens": 3}}


def cases() -> Iterator[Any]:
    """A route with none of its features, each, each two, and all of them; each two as lines of JSON are long."""
    for path, features in FEATURES.items():
        for names in ((), *((name,) for name in features), *combinations(features, 2), tuple(features)):
            name = f"{path.split('/')[2]}: {' + '.join(names) or 'plain'}"
            yield pytest.param(path, names, "text/event-stream", id=name)
            marks = () if len(names) in (0, 1, len(features)) else pytest.mark.long
            yield pytest.param(path, names, "application/x-ndjson", id=f"{name}, lines of JSON", marks=marks)


def merged(chunks: list[dict[str, Any]]) -> dict[str, Any]:
    """The answer that a client accumulates: texts and lists are joined, and all else is told once."""
    answer: dict[str, Any] = {}
    choices: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        for piece in chunk.pop("choices"):
            join(choices.setdefault(piece["index"], {}), piece)
        answer |= {name: value for name, value in chunk.items() if value is not None}
    return answer | {"choices": [choices[index] for index in sorted(choices)]}


def join(whole: dict[str, Any], piece: dict[str, Any]) -> None:
    """Add a piece of a choice to what came before it."""
    for name, value in piece.items():
        before = whole.get(name)
        if name == "tool_calls":
            for call in value:
                join(whole.setdefault(name, {}).setdefault(call["index"], {}), call)
        elif before is None or value is None:
            whole[name] = before if value is None else value
        elif isinstance(value, dict):
            join(before, value)
        elif isinstance(value, str | list):
            assert name not in ("role", "id", "finish_reason", "prompt_token_ids", "prompt_logprobs"), f"{name} twice"
            whole[name] = before + value
        else:
            assert before == value and name == "index"


def as_message(delta: dict[str, Any]) -> dict[str, Any]:
    """The message that joined deltas are."""
    found = delta.pop("tool_calls", {})
    assert [*found] == [*range(len(found))]
    calls = [{name: value for name, value in call.items() if name != "index"} for call in found.values()]
    fields = {"tool_calls": calls, "content": delta["content"] or None} if calls else {}
    return {"refusal": None, **delta, **fields}


def comparable(answer: dict[str, Any], num_choices: int) -> dict[str, Any]:
    """An answer without what differs between two requests, and what a stream tells of a prompt once."""
    for choice in answer["choices"]:
        if "message" in choice:
            choice["message"] = without_ids(choice["message"])
        if choice.get("token_ids") == []:  # a stream has none
            del choice["token_ids"]
        if choice["index"] % num_choices:
            for name in ("prompt_token_ids", "prompt_logprobs"):
                choice.pop(name, None)
    for name in ("id", "created", "object"):
        assert answer.pop(name)
    return answer


async def app_of(path: str) -> Any:
    """An application whose chats reason and call, each choice in its own way."""
    if path == TEXT:
        return await make_app(FakeEngine())
    return (await app_with(ANSWERS["reasoning and a call"], ANSWERS["text and calls"], size=5))[0]


@pytest.mark.parametrize(("path", "names", "framing"), [*cases()])
async def test_a_stream_is_the_whole_answer_in_pieces(path: str, names: tuple[str, ...], framing: str):
    body = BODIES[path] | {key: value for name in names for key, value in FEATURES[path][name].items()}
    usage = body.pop("stream_options", {"include_usage": True})
    async with client_of(await app_of(path)) as client:
        whole = await client.post(path, json=body)
        fields = body | {"stream": True, "stream_options": usage}
        stream = await client.post(path, json=fields, headers={"accept": framing})
    assert (whole.status_code, stream.status_code) == (200, 200), whole.text + stream.text
    assert stream.headers["content-type"].startswith(framing)
    lines = [line.removeprefix("data: ") for line in stream.text.split("\n")]
    answer = merged([json.loads(line) for line in lines if line.startswith("{")])
    for choice in answer["choices"]:
        if "delta" in choice:
            choice["message"] = as_message(choice.pop("delta"))
    num_choices = body.get("n", 1)
    assert len(answer["choices"]) == num_choices * (2 if "prompts" in names else 1)
    assert comparable(answer, num_choices) == comparable(whole.json(), num_choices)
