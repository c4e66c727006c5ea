"""Responses for tests: their answers in deltas, the events of their streams, and what holds for every stream."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import groupby
from typing import Any, get_args

from openai import BaseModel
from openai.types.responses import Response, ResponseStreamEvent

from app.api.responses.asked import AskedResponse, CalledTool, CalledTools
from app.api.responses.responses_wire import ResponsesWire
from app.api.wire.api_request import ApiRequest
from app.api.wire.wire import joined
from app.contract.errors import ErrorInfo
from app.contract.events import ChoiceEnd, Finished, FinishReason, Timings, TokenDelta, Usage
from app.text.answer.answer_format import AnswerFormat
from app.text.answer.answer_plan import AnswerPlan
from app.text.answer.reasoning import STYLES
from app.text.calls.formats import FORMATS
from tests.fakes import make_request
from tests.text.answer.answers import SCHEMAS

ID = "resp_" + "0123456789abcdef" * 2
USAGE, SPAN = Usage(9, 4, 5), Timings(0.25, 0.5, 2.5)
DONE = {"response.completed", "response.incomplete", "response.failed"}
CUSTOM = CalledTools({"a_1": CalledTool("custom", "a_1"), "get-time": CalledTool("tool_search", "tool_search")})
# The events inside an item: before its text, of each piece, and behind it.
TEXT = ("response.content_part.added", "response.output_text.delta", "response.output_text.done")
REASONING = ("response.content_part.added", "response.reasoning_text.delta", "response.reasoning_text.done")
SUMMARY = tuple(f"response.reasoning_summary_{name}" for name in ("part.added", "text.delta", "text.done"))
ARGUMENTS = ("response.function_call_arguments.delta", "response.function_call_arguments.done")
INPUT = ("response.custom_tool_call_input.delta", "response.custom_tool_call_input.done")

MODELS: dict[str, type[BaseModel]] = {
    get_args(model.model_fields["type"].annotation)[0]: model for model in get_args(get_args(ResponseStreamEvent)[0])
}
"""OpenAI's types of the events."""


def asked(**fields: Any) -> AskedResponse:
    """What a client asked for."""
    return AskedResponse(**{"response_id": ID, "created_at": 1700000000, "model": "guide", **fields})


def request(plan: AnswerPlan | None = None, *, stream: bool = True, token_bytes: Any = bytes) -> ApiRequest:
    """A request whose answer is read by a plan."""
    return ApiRequest(make_request("r"), "guide", 1700000000, stream, False, (), token_bytes, answer=plan)


def plan_of(family: str | None = "hermes") -> AnswerPlan:
    """How the answers of a family of models are read, which may reason."""
    return AnswerPlan(AnswerFormat(None if family is None else FORMATS[family], STYLES["think"]), SCHEMAS)


def deltas(pieces: Sequence[str]) -> list[TokenDelta]:
    """The deltas of an answer, each with one token."""
    return [TokenDelta("r", 0, number, (number,), text) for number, text in enumerate(pieces, 1)]


def finished(reason: FinishReason = FinishReason.STOP) -> Finished:
    """The end of an answer."""
    return Finished("r", 0, ChoiceEnd(reason), USAGE, SPAN)


def stream_bytes(
    pieces: Sequence[str],
    plan: AnswerPlan | None = None,
    *,
    reason: FinishReason = FinishReason.STOP,
    error: ErrorInfo | None = None,
    after: int = -1,
    **fields: Any,
) -> bytes:
    """The bytes of a stream, of which an error can be the end."""
    wire = ResponsesWire(request(plan), asked(**fields), after)
    body = b"".join([*wire.first(), *map(wire.delta, deltas(pieces))])
    if error is not None:
        return body + joined(wire.error(error))
    return body + wire.finish(finished(reason)) + joined(wire.last(USAGE, SPAN))


def streamed(*args: Any, **kwargs: Any) -> list[dict[str, Any]]:
    """The events of a stream, see `stream_bytes`."""
    return events_in(stream_bytes(*args, **kwargs))


def whole(
    pieces: Sequence[str], plan: AnswerPlan | None = None, reason: FinishReason = FinishReason.STOP, **fields: Any
) -> dict[str, Any]:
    """The JSON body of a response."""
    wire = ResponsesWire(request(plan, stream=False), asked(**fields))
    for delta in deltas(pieces):
        wire.keep(delta)
    body: dict[str, Any] = json.loads(b"".join(wire.whole({0: ChoiceEnd(reason)}, USAGE, SPAN).pieces))
    return body


def events_in(body: bytes) -> list[dict[str, Any]]:
    """The events of server-sent events; their names are their types, the first field of each."""
    found = []
    for event in body.decode().split("\n\n")[:-1]:
        name, data = event.splitlines()
        payload = json.loads(data.removeprefix("data: "))
        assert name == f"event: {payload['type']}" and [*payload][:2] == ["type", "sequence_number"]
        found.append(payload)
    return found


def typed(event: dict[str, Any]) -> BaseModel:
    """An event as OpenAI's type of it, which it must fit strictly."""
    return MODELS[event["type"]].model_validate(event, strict=True)


def typed_body(body: dict[str, Any]) -> Response:
    """A JSON body as OpenAI's type of it, which it must fit strictly."""
    return Response.model_validate(body, strict=True)


def types_in(events: Sequence[dict[str, Any]]) -> list[str]:
    """The types of events, without what all have in common."""
    return [event["type"].removeprefix("response.") for event in events]


def check_stream(events: list[dict[str, Any]]) -> dict[str, Any]:
    """Assert what holds for every stream; return the response that it ends with."""
    assert [event["sequence_number"] for event in events] == [*range(len(events))]
    created, begun, *inner, last = events
    assert [created["type"], begun["type"]] == ["response.created", "response.in_progress"]
    assert last["type"] in DONE and not DONE & {event["type"] for event in inner}
    for event in (created, begun):
        response = event["response"]
        assert (response["status"], response["output"], response["usage"]) == ("in_progress", [], None)
    final: dict[str, Any] = last["response"]
    assert final["status"] == last["type"].removeprefix("response.")
    assert {event["response"]["id"] for event in (created, begun, last)} == {final["id"]}
    assert (final["usage"] is None) == (final["status"] == "failed")
    groups = [(index, [*group]) for index, group in groupby(inner, lambda event: event["output_index"])]
    assert [index for index, _ in groups] == [*range(len(groups))], "one item after another"
    is_failed = final["status"] == "failed"
    items = [check_item(group, may_break_off=is_failed and index == len(groups) - 1) for index, group in groups]
    assert items == without_logprobs(final["output"])
    assert len({item["id"] for item in items}) == len(items)
    return final


def without_logprobs(output: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The items of a response as the events before the last one have them."""
    found: list[dict[str, Any]] = json.loads(json.dumps(output))
    for item in found:
        for part in item["content"] if item["type"] == "message" else ():
            part["logprobs"] = []
    return found


def check_item(events: list[dict[str, Any]], *, may_break_off: bool) -> dict[str, Any]:
    """Assert what holds for the events of an item; return it. An error breaks it off."""
    added, *inner = events
    assert added["type"] == "response.output_item.added"
    item = added["item"]
    assert item["status"] == "in_progress" and not text_of(item)
    ends = bool(inner) and inner[-1]["type"] == "response.output_item.done"
    assert ends or may_break_off
    done = inner.pop()["item"] if ends else None
    assert all(event["item_id"] == item["id"] for event in inner)
    text = check_inner(item, inner, has_ended=ends)
    if done is None:
        return with_text(item, text) | {"status": "incomplete"}
    fixed = ("type", "id", "call_id", "name", "namespace", "role", "execution")
    assert [done.get(name) for name in fixed] == [item.get(name) for name in fixed]
    assert done["status"] in ("completed", "incomplete")
    if done["type"] != "tool_search_call":
        assert text_of(done) == text
    if done["type"] in ("message", "reasoning"):
        assert text, "an item without a text was made"
    return dict(done)


def check_inner(item: dict[str, Any], events: list[dict[str, Any]], *, has_ended: bool) -> str:
    """Assert what holds for the events between the beginning and the end of an item; return the text of its pieces."""
    types = [event["type"] for event in events]
    if item["type"] in ("function_call", "custom_tool_call"):
        delta, done = ARGUMENTS if item["type"] == "function_call" else INPUT
        num_deltas = len(types) - has_ended
        assert types == [delta] * num_deltas + [done] * has_ended
        text = "".join(event["delta"] for event in events[:num_deltas])
        if has_ended:
            assert events[-1]["arguments" if item["type"] == "function_call" else "input"] == text
            assert events[-1].get("name", item["name"]) == item["name"]
        return text
    if item["type"] == "tool_search_call":
        assert types == []
        return ""
    is_summary = item["type"] == "reasoning" and item["content"] is None
    begin, delta, done = TEXT if item["type"] == "message" else SUMMARY if is_summary else REASONING
    num_deltas = len(types) - 1 - 2 * has_ended
    end = begin.replace("added", "done")
    assert types == [begin] + [delta] * num_deltas + [done, end] * has_ended and num_deltas
    text = "".join(event["delta"] for event in events if event["type"] == delta)
    assert events[0]["part"]["text"] == ""
    if has_ended:
        assert events[-2]["text"] == text
        assert events[-1]["part"] == events[0]["part"] | {"text": text}
    assert {event["summary_index" if is_summary else "content_index"] for event in events} == {0}
    return text


def text_of(item: dict[str, Any]) -> str:
    """The text of an item, whichever it has."""
    if item["type"] in ("message", "reasoning"):
        return "".join(part["text"] for name in ("summary", "content") for part in item.get(name) or ())
    return str(item.get("arguments") or item.get("input") or "")


def with_text(item: dict[str, Any], text: str) -> dict[str, Any]:
    """An item that has a text."""
    if item["type"] == "message":
        return item | {"content": [{"type": "output_text", "text": text, "annotations": [], "logprobs": []}]}
    if item["type"] == "reasoning":
        name, kind = ("summary", "summary_text") if item["content"] is None else ("content", "reasoning_text")
        return item | {name: [{"type": kind, "text": text}]}
    return item | {"arguments": text}
