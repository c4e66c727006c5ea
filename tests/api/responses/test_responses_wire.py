"""The bytes of responses, as streams and as JSON bodies, from the wire and from the whole way of a session."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from app.api.body.parse_chat import parse_chat
from app.api.responses.asked import AskedReasoning
from app.api.responses.responses_wire import ResponsesWire
from app.api.wire.stream_response import make_response
from app.api.wire.wire import joined
from app.contract.errors import (
    ContextLengthExceeded,
    DeadlineExceeded,
    Draining,
    EngineFailed,
    ErrorInfo,
    GrammarTooCostly,
    Overloaded,
    RateLimitExceeded,
)
from app.contract.events import FinishReason, TokenDelta
from app.contract.packed_logprobs import Logprobs, TokenLogprobs
from tests.api.responses.answered import (
    ID,
    SPAN,
    USAGE,
    asked,
    check_stream,
    deltas,
    events_in,
    finished,
    plan_of,
    request,
    stream_bytes,
    streamed,
    typed,
    typed_body,
    types_in,
    whole,
)
from tests.api.serving import FAST, make_app, parse, raw
from tests.fakes import FakeEngine, Script
from tests.text.answer.answers import WRITERS

STATE = (
    f'"id":"{ID}","object":"response","created_at":1700000000,"status":%s,"completed_at":%s,"error":null,'
    '"incomplete_details":null,"model":"guide","output":%s,"usage":%s,"previous_response_id":null,"instructions":null,'
    '"tools":[],"tool_choice":"auto","parallel_tool_calls":true,"max_tool_calls":null,"max_output_tokens":null,'
    '"temperature":null,"top_p":null,"presence_penalty":0.0,"frequency_penalty":0.0,"top_logprobs":0,'
    '"text":{"format":{"type":"text"}},"reasoning":{"effort":null,"summary":null},'
    '"truncation":"disabled","store":false,"background":false,"service_tier":"default","metadata":{},"user":null,'
    '"safety_identifier":null,"prompt_cache_key":null'
)
BEGUN = "{%s}" % (STATE % ('"in_progress"', "null", "[]", "null"))
COUNTS = (
    '{"input_tokens":9,"input_tokens_details":{"cached_tokens":5,"cache_write_tokens":0},"output_tokens":4,'
    '"output_tokens_details":{"reasoning_tokens":0},"total_tokens":13}'
)
TEXT = {"format": {"type": "text"}}
TOP = Logprobs.of([TokenLogprobs(5, -0.5, 1, (6, 7), (-0.25, -9.0))], 2)
TOKENS = {number: b"%d" % number for number in range(99)}


def item_id() -> str:
    """The id of the first item, a message."""
    return str(whole(["a"])["output"][0]["id"])


def test_a_stream_has_exactly_these_bytes():
    place = f'"output_index":0,"item_id":"{item_id()}"'
    part = '"part":{"type":"output_text","text":%s,"annotations":[],"logprobs":[]},"content_index":0'
    item = f'{{"type":"message","id":"{item_id()}","status":%s,"content":%s,"role":"assistant"}}'
    text = '"H\\u2028\\""'
    content = f'[{{"type":"output_text","text":{text},"annotations":[],"logprobs":[]}}]'
    done = item % ('"completed"', content)
    ended = STATE % ('"completed"', "1700000002", f"[{done}]", COUNTS)
    expected = [
        ("created", f'"response":{BEGUN}'),
        ("in_progress", f'"response":{BEGUN}'),
        ("output_item.added", '"output_index":0,"item":' + item % ('"in_progress"', "[]")),
        ("content_part.added", place + "," + part % '""'),
        ("output_text.delta", f'{place},"delta":"H\\u2028","content_index":0,"logprobs":[]'),
        ("output_text.delta", f'{place},"delta":"\\"","content_index":0,"logprobs":[]'),
        ("output_text.done", f'{place},"text":{text},"content_index":0,"logprobs":[]'),
        ("content_part.done", place + "," + part % text),
        ("output_item.done", f'"output_index":0,"item":{done}'),
        ("completed", f'"response":{{{ended}}}'),
    ]
    events = [
        f'event: response.{name}\ndata: {{"type":"response.{name}","sequence_number":{number},{fields}}}\n\n'
        for number, (name, fields) in enumerate(expected)
    ]
    assert stream_bytes(["H\u2028", "", '"']).decode() == "".join(events)


def test_a_body_has_exactly_these_bytes():
    content = '[{"type":"output_text","text":"Hi","annotations":[],"logprobs":[]}]'
    item = f'{{"type":"message","id":"{item_id()}","status":"completed","content":{content},"role":"assistant"}}'
    wire = ResponsesWire(request(stream=False), asked(text=TEXT))
    for delta in deltas(["H", "i"]):
        wire.keep(delta)
    body = wire.whole({0: finished().end}, USAGE, SPAN)
    ended = STATE % ('"completed"', "1700000002", f"[{item}]", COUNTS)
    assert (b"".join(body.pieces).decode(), body.num_bytes) == (f"{{{ended}}}", None)


def test_a_heartbeat_is_a_comment_without_a_blank_line():
    assert (ResponsesWire.heartbeat, ResponsesWire.media_type) == (b": \n", "text/event-stream; charset=utf-8")


def test_everything_that_was_asked_for_is_repeated():
    tool = {"type": "function", "name": "f", "parameters": {}, "strict": False, "description": None}
    repeated: dict[str, Any] = {
        "instructions": "Be brief.",
        "metadata": {"a": "b"},
        "previous_response_id": "resp_1",
        "text": {"format": {"type": "json_object"}, "verbosity": "low"},
        "tool_choice": {"type": "function", "name": "f"},
        "tools": [tool],
        "temperature": 0.5,
        "top_p": 1.0,
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
        "top_logprobs": 3,
        "max_output_tokens": 7,
        "max_tool_calls": 2,
        "parallel_tool_calls": False,
        "truncation": "auto",
        "store": True,
        "background": False,
        "user": "u",
        "safety_identifier": "s",
        "prompt_cache_key": "k",
    }
    body = whole(["a"], reasoning=AskedReasoning(effort="low", summary="auto"), **repeated)
    typed_body(body)
    assert repeated.items() <= body.items()
    assert body["reasoning"] == {"effort": "low", "summary": "auto"}


def test_the_first_events_are_small_whatever_was_asked_for():
    """Together they stay below the mark at which generation pauses for a client that has not read them."""
    long = "x" * 40_000
    tools = [{"type": "function", "name": "f", "description": long, "parameters": {}, "strict": False}]
    text = {"format": {"type": "json_schema", "name": "n", "schema": {"description": long}}}
    wire = ResponsesWire(request(), asked(instructions=long, tools=tools, text=text))
    first = b"".join(wire.first())
    assert len(first) < 4000
    for event in events_in(first):
        typed(event)
    [last] = events_in(wire.finish(finished()) + joined(wire.last(USAGE, SPAN)))
    response = last["response"]
    assert (response["instructions"], response["tools"], response["text"]) == (long, tools, text)


def test_a_token_is_one_event_whose_size_does_not_grow_with_the_answer():
    wire = ResponsesWire(request(plan_of()), asked(tools=[{"type": "function", "name": "f" * 9999}]))
    _ = [*wire.first()]
    begin, *sizes = [len(wire.delta(delta)) for delta in deltas(["word "] * 2000)]
    assert begin > sizes[0]
    assert max(sizes) - min(sizes) == len("2003") - len("5")


def test_a_token_of_text_alone_has_the_bytes_of_any_other():
    """Its event is put together of parts; that of an answer with log-probabilities is dumped as a whole."""
    pieces = ["One", "", " \u2028", '"', "two\n", "\x85 0 sequence_number", "."]
    for after in (-1, 4, 6):
        assert stream_bytes(pieces, after=after) == stream_bytes(pieces, has_logprobs=True, after=after)


def test_counts_have_all_details():
    plan = plan_of()
    body = whole(["<think>a</think>", "b"], plan)
    usage = typed_body(body).usage
    assert usage is not None
    assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (9, 4, 13)
    assert usage.input_tokens_details.model_dump(exclude_none=True) == {"cached_tokens": 5, "cache_write_tokens": 0}
    assert usage.output_tokens_details.reasoning_tokens == 0, "its marks are no tokens here"


def test_times_come_if_they_are_asked_for():
    last = streamed(["a"], has_timings=True)[-1]["response"]
    assert last["timings"]["predicted_n"] == 4 and last == whole(["a"], has_timings=True)
    assert "timings" not in whole(["a"])


def test_a_response_in_the_background_waits_first():
    events = streamed(["a"], background=True)
    assert types_in(events)[:3] == ["created", "queued", "in_progress"]
    assert events[1]["response"]["status"] == "queued"
    for event in events:
        typed(event)


@pytest.mark.parametrize(
    ("error", "code", "hint"),
    [
        (ContextLengthExceeded("Too long."), "context_length_exceeded", ""),
        (Overloaded("Full."), "rate_limit_exceeded", " Please try again in 1s."),
        (Overloaded("Hot.", retry_after_s=9), "rate_limit_exceeded", " Please try again in 9s."),
        (Draining("End."), "rate_limit_exceeded", " Please try again in 1s."),
        (RateLimitExceeded("Wait."), "rate_limit_exceeded", ""),
        (EngineFailed("It broke."), "server_error", ""),
        (DeadlineExceeded("Late."), "server_error", ""),
        (GrammarTooCostly("Dear."), "server_error", ""),
    ],
)
def test_a_failure_has_a_code_that_clients_know_beside_ours(error, code, hint):
    info: ErrorInfo = error.info()
    events = streamed(["a"], error=info)
    final = check_stream(events)
    assert final["error"] == {"code": code, "message": info.message + hint, "quire_code": info.code}
    assert final["usage"] is None and final["output"][0]["status"] == "incomplete"
    if code != "context_length_exceeded":  # which clients know, but not OpenAI's types
        typed(events[-1])


def test_a_failure_before_the_first_token_begins_the_response_too():
    wire = ResponsesWire(request(), asked())
    events = events_in(joined(wire.error(EngineFailed("It broke.").info())))
    assert check_stream(events)["output"] == []
    assert types_in(events) == ["created", "in_progress", "failed"]


def test_half_a_call_has_no_end_when_the_response_fails():
    """Clients make a call when its item is done."""
    text = WRITERS["hermes"]([("search", {"text": "hi"})])[:50]
    events = streamed([text], plan_of(), error=EngineFailed("It broke.").info())
    assert not [name for name in types_in(events) if name.endswith("done")]
    assert check_stream(events)["output"][0]["status"] == "incomplete"


def with_logprobs(*texts: str) -> list[TokenDelta]:
    """Deltas with one token each, whose number it is, and two others that are likely."""
    rows = [TokenLogprobs(number, -number / 4, 1, (8, 9), (-0.25, -9.0)) for number in range(1, len(texts) + 1)]
    return [
        replace_logprobs(delta, Logprobs.of([row], 2)) for delta, row in zip(deltas(texts), rows, strict=True)
    ]  # fmt: skip


def replace_logprobs(delta: TokenDelta, logprobs: Logprobs) -> TokenDelta:
    """A delta with log-probabilities."""
    return delta._replace(logprobs=logprobs)


def tokens_of(events: list[dict[str, Any]]) -> list[list[str]]:
    """The tokens of each piece of text in a stream."""
    found = [event["logprobs"] for event in events if event["type"] == "response.output_text.delta"]
    return [[entry["token"] for entry in entries] for entries in found]


@pytest.mark.parametrize(
    ("texts", "tokens"),
    [
        (["a", "b"], [["1"], ["2"]]),
        (["", "a", ""], [["1", "2"], ["3"]]),  # a character in two tokens, and the end
        (["a", "<tool_", "x"], [["1"], ["2", "3"]]),  # what may become a call
        (["<think>", "a", "</think>", "b", "c"], [["4"], ["5"]]),
        (["a", '<tool_call>{"name": "search", ', '"arguments": {}}', "</tool_call>"], [["1"]]),
        (["<think>", "a"], []),
        ([""], []),
    ],
)
def test_texts_have_the_log_probabilities_of_their_tokens_streamed_and_whole(texts, tokens):
    sent = with_logprobs(*texts)
    form = asked(has_logprobs=True, top_logprobs=2)
    wire = ResponsesWire(request(plan_of(), token_bytes=TOKENS.__getitem__), form)
    body = b"".join([*wire.first(), *map(wire.delta, sent), wire.finish(finished()), joined(wire.last(USAGE, SPAN))])
    events = events_in(body)
    final = check_stream(events)
    for event in events:
        typed(event)
    assert tokens_of(events) == tokens
    kept = ResponsesWire(request(plan_of(), stream=False, token_bytes=TOKENS.__getitem__), form)
    for delta in sent:
        kept.keep(delta)
    whole_body = kept.whole({0: finished().end}, USAGE, SPAN)
    response = json.loads(b"".join(whole_body.pieces))
    typed_body(response)
    found = [part["logprobs"] for item in response["output"] if item["type"] == "message" for part in item["content"]]
    streamed_entries = [entry for event in events for entry in event.get("logprobs", ())]
    assert [entry for entries in found for entry in entries] == streamed_entries
    assert final == response, "the last event has them once more"
    assert whole_body.num_bytes == 28 * sum(map(len, tokens))
    for entry in streamed_entries:
        assert [top["token"] for top in entry["top_logprobs"]] == ["8", "9"]


def test_without_the_request_there_are_no_log_probabilities():
    wire = ResponsesWire(request(token_bytes=TOKENS.__getitem__), asked())
    events = events_in(b"".join(map(wire.delta, with_logprobs("a", "b"))))
    assert tokens_of(events) == [[], []]


@pytest.mark.parametrize("end", ["whole", "last", "error"])
def test_many_log_probabilities_come_in_pieces(end):
    is_stream = end != "whole"
    wire = ResponsesWire(request(stream=is_stream, token_bytes=TOKENS.__getitem__), asked(has_logprobs=True))
    for delta in deltas(["\u2028a"] * 2000):
        (wire.skip if is_stream else wire.keep)(replace_logprobs(delta, TOP))
    if end == "whole":
        pieces = [*wire.whole({0: finished().end}, USAGE, SPAN).pieces]
        response = json.loads(b"".join(pieces))
    else:
        wire.finish(finished())
        pieces = [*(wire.last(USAGE, SPAN) if end == "last" else wire.error(EngineFailed("It broke.").info()))]
        [event] = events_in(b"".join(pieces))
        response = event["response"]
    assert len(response["output"][0]["content"][0]["logprobs"]) == 2000
    assert max(map(len, pieces)) < 2**17 < sum(map(len, pieces))


def test_the_last_event_has_no_log_probabilities_for_who_has_it():
    wire = ResponsesWire(request(token_bytes=TOKENS.__getitem__), asked(has_logprobs=True), after=9)
    body = b"".join([*wire.first(), *map(wire.delta, with_logprobs("a")), wire.finish(finished())])
    assert b"".join([body, *wire.last(USAGE, SPAN)]) == b""


async def sent(engine: FakeEngine, *, release_after: bytes = b"", **fields: Any) -> tuple[int, str, bytes]:
    """The status, the media type and the body of a response to a chat, from its session on."""
    context = (await make_app(engine, timers=FAST)).state.context
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 9, **fields}
    messages: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        messages.append(message)
        if message.get("body") == release_after:
            engine.release()

    chat = await parse(raw(body), context, parse_chat)
    response = make_response(context, chat, ResponsesWire(chat, asked()))
    await response({"type": "http", "path": "/v1/responses"}, asyncio.Queue().get, send)
    start, *bodies = messages
    media_type = dict(start["headers"])[b"content-type"].decode()
    return start["status"], media_type, b"".join(message["body"] for message in bodies)


async def test_a_session_is_streamed_as_events():
    engine = FakeEngine(Script(["a", "b"]))
    status, media_type, body = await sent(engine, stream=True)
    assert (status, media_type) == (200, ResponsesWire.media_type)
    final = check_stream(events_in(body))
    assert final["output"][0]["content"][0]["text"] == "ab"
    assert final["usage"]["output_tokens"] == 2


async def test_a_session_becomes_a_body():
    status, media_type, body = await sent(FakeEngine(Script(["a", "b"])))
    assert (status, media_type) == (200, "application/json")
    assert typed_body(json.loads(body)).output_text == "ab"


async def test_a_stream_that_waits_has_heartbeats_before_its_first_event():
    _, _, body = await sent(FakeEngine(Script(["a"]), held=True), stream=True, release_after=b": \n")
    assert body.startswith(b": \n")
    check_stream(events_in(body.replace(b": \n", b"")))


async def test_a_limit_is_said():
    _, _, body = await sent(FakeEngine(), stream=True, max_tokens=3)
    final = check_stream(events_in(body))
    assert (final["status"], final["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})


@pytest.mark.parametrize(("fail_after", "is_streaming"), [(0, False), (1, True), (2, True)])
async def test_a_failure_is_a_status_before_the_first_event_and_the_last_event_after_it(fail_after, is_streaming):
    script = Script(fail_after=fail_after, error=ErrorInfo("engine_error", "It broke."))
    status, _, body = await sent(FakeEngine(script), stream=True)
    if is_streaming:
        assert status == 200 and check_stream(events_in(body))["error"]["quire_code"] == "engine_error"
    else:
        assert status == 500 and json.loads(body)["error"]["code"] == "engine_error"


def test_a_cancelled_response_says_so():
    wire = ResponsesWire(request(), asked())
    body = b"".join([*wire.first(), wire.delta(deltas(["a"])[0]), wire.finish(finished(FinishReason.CANCELLED))])
    *_, last = events_in(body + joined(wire.last(USAGE, replace(SPAN, total_s=9.5))))
    assert (last["type"], last["response"]["status"]) == ("response.incomplete", "cancelled")
    assert last["response"]["completed_at"] == 1700000009 and last["response"]["incomplete_details"] is None
    typed(last)
