"""The events and bodies of the Messages API."""

import json
from dataclasses import replace

import pytest

from app.api.anthropic.messages_wire import PING, MessagesWire
from app.contract.errors import ErrorInfo, Overloaded
from app.contract.events import REPETITION, ChoiceEnd, Finished, FinishReason, Timings, TokenDelta, Usage
from tests.api.anthropic.messages import BODY, PATH, TOOLS, events_of, message_of, streamed, whole
from tests.api.anthropic.test_message_assembler import request_of
from tests.api.routes.test_tools import ANSWERS, app_with
from tests.api.serving import FAST, client_of, connected, make_app, serving
from tests.fakes import FakeEngine, Script

SPAN = Timings(0.1, 0.2, 0.3)


def without_ids(message: dict) -> dict:
    """A message without what differs between two requests."""
    blocks = [{**block, "id": "toolu"} if block["type"] == "tool_use" else block for block in message["content"]]
    return message | {"id": "msg", "content": blocks}


@pytest.mark.parametrize("size", [1, 5, 1000])
@pytest.mark.parametrize("name", ANSWERS)
async def test_streamed_and_whole_answers_agree(name, size):
    app, _ = await app_with(ANSWERS[name], size=size)
    message = await whole(app, tools=TOOLS)
    assert without_ids(message_of(await streamed(app, tools=TOOLS))) == without_ids(message)
    assert (message["stop_reason"] == "tool_use") == ("call" in name and name != "a broken call")


async def test_a_message_has_its_blocks_in_order():
    app, _ = await app_with(ANSWERS["reasoning and a call"])
    message = await whole(app, tools=TOOLS)
    thinking, call = message["content"]
    assert thinking["thinking"] == "I need\n\nthe weather." and thinking["signature"]
    assert (call["name"], call["input"]) == ("weather", {"city": "Ab<b>é"})
    assert (message["type"], message["role"], message["model"]) == ("message", "assistant", "guide")
    assert message["id"].startswith("msg_") and len(message["id"]) == 36


async def test_calls_alone_have_no_text_in_front():
    app, _ = await app_with(ANSWERS["call"])
    kinds = [event["content_block"]["type"] for event in await streamed(app, tools=TOOLS) if "content_block" in event]
    assert kinds == ["tool_use"]


async def test_a_call_that_is_cut_has_no_input_and_its_pieces_in_a_stream():
    app, _ = await app_with(ANSWERS["a broken call"])
    message = await whole(app, tools=TOOLS)
    assert [block["input"] for block in message["content"]] == [{}]
    assert message["stop_reason"] == "end_turn"
    deltas = [event["delta"] for event in await streamed(app, tools=TOOLS) if event["type"] == "content_block_delta"]
    assert "".join(delta["partial_json"] for delta in deltas) == '{"city": 3'


async def test_the_prompt_is_counted_at_the_start_and_its_cached_part_at_the_end():
    engine = FakeEngine(Script(["a", "b"], usage=Usage(0, 0, cached_tokens=2)))
    events = await streamed(await make_app(engine))
    num_prompt = len(engine.requests[0].prompt_token_ids)
    assert [event["type"] for event in events[:2]] == ["message_start", "ping"]
    start = {"cache_creation_input_tokens": 0, "cache_read_input_tokens": 0, "output_tokens": 0}
    assert events[0]["message"]["usage"] == {"input_tokens": num_prompt, **start}
    end = {"cache_creation_input_tokens": 0, "cache_read_input_tokens": 2, "output_tokens": 2}
    assert events[-2]["usage"] == {"input_tokens": num_prompt - 2, **end}


@pytest.mark.parametrize(
    ("end", "is_lowered", "expected"),
    [
        (ChoiceEnd(FinishReason.STOP), True, ("end_turn", None)),
        (ChoiceEnd(FinishReason.STOP, "END"), False, ("stop_sequence", "END")),
        (ChoiceEnd(FinishReason.STOP, 7), False, ("end_turn", None)),
        (ChoiceEnd(FinishReason.LENGTH), False, ("max_tokens", None)),
        (ChoiceEnd(FinishReason.LENGTH), True, ("model_context_window_exceeded", None)),
        (ChoiceEnd(FinishReason.LENGTH, REPETITION), True, ("max_tokens", None)),
    ],
)
def test_a_message_says_why_it_has_ended(end, is_lowered, expected):
    request = request_of(None)
    wires = [MessagesWire(request_with(request, is_lowered)) for _ in range(2)]
    usage = Usage(3, 1)
    body = b"".join(wires[0].first()) + wires[0].finish(Finished("msg_1", 0, end, usage, SPAN))
    message = message_of(events_of(body + wires[0].last(usage, SPAN)))
    assert (message["stop_reason"], message["stop_sequence"]) == expected
    answer = json.loads(b"".join(wires[1].whole({0: end}, usage, SPAN).pieces))
    assert (answer["stop_reason"], answer["stop_sequence"]) == expected


def request_with(request, is_lowered):
    return replace(request, asked=request.asked._replace(is_lowered=is_lowered))


def test_complete_calls_are_a_reason_of_their_own_and_cut_ones_are_not():
    call = '<tool_call>{"name": "search", "arguments": {}}</tool_call>'
    for text, reason, expected in (
        (call, FinishReason.STOP, "tool_use"),
        (call, FinishReason.LENGTH, "max_tokens"),
        (call + call[:40], FinishReason.STOP, "end_turn"),
    ):
        wire = MessagesWire(request_of("hermes"))
        wire.keep(TokenDelta("msg_1", 0, 1, (1,), text))
        answer = json.loads(b"".join(wire.whole({0: ChoiceEnd(reason)}, Usage(3, 1), SPAN).pieces))
        assert answer["stop_reason"] == expected


async def test_a_heartbeat_is_a_ping():
    engine = FakeEngine(Script(["a"]), held=True)
    async with serving(await make_app(engine, timers=FAST)) as url, connected(url) as connection:
        await connection.post(PATH, BODY | {"stream": True})
        assert (await connection.head())[0] == 200
        assert await connection.chunk() == PING
        engine.release()
        body = b"".join(await connection.chunks())
    assert message_of(events_of(body))["content"] == [{"type": "text", "text": "a", "citations": None}]


async def test_a_failure_in_a_stream_is_an_error_in_place_of_the_rest():
    error = Overloaded("Too „much“.").info()
    app = await make_app(FakeEngine(Script(["a", "b"], fail_after=1, error=error)))
    *_, delta, last = await streamed(app)
    assert delta["delta"] == {"type": "text_delta", "text": "a"}
    assert last == {"type": "error", "error": {"type": "overloaded_error", "message": "Too „much“."}}


@pytest.mark.parametrize("stream", [False, True])
async def test_a_failure_before_the_stream_has_a_status(stream):
    error = ErrorInfo("engine_error", "It broke.")
    async with client_of(await make_app(FakeEngine(Script(fail_after=0, error=error)))) as client:
        answer = await client.post(PATH, json=BODY | {"stream": stream})
    assert (answer.status_code, answer.json()["error"]["type"]) == (500, "api_error")


def test_a_line_end_of_unicode_does_not_divide_an_event():
    wire = MessagesWire(request_of(None))
    body = b"".join(wire.delta(TokenDelta("msg_1", 0, n, (n,), "a\u2028\x85b\r\n")) for n in (1, 2))
    assert body.decode().splitlines() == body.decode().split("\n")[:-1]
    texts = [event["delta"]["text"] for event in events_of(body) if "delta" in event]
    assert texts == ["a\u2028\x85b\r\n"] * 2


def test_what_a_reader_has_is_skipped_and_the_rest_is_the_same():
    pieces = ["<think>Hm.</think>One", ' two <tool_call>{"name": "search", "argu', 'ments": {}}</tool_call>']
    deltas = [TokenDelta("msg_1", 0, n, (n,), piece) for n, piece in enumerate(pieces)]
    for name in ("hermes", None):
        reader, other = MessagesWire(request_of(name)), MessagesWire(request_of(name))
        told = [reader.delta(delta) for delta in deltas]
        other.skip(deltas[0])
        assert [other.delta(delta) for delta in deltas[1:]] == told[1:]


async def test_tokens_without_text_are_counted_and_not_told():
    engine = FakeEngine(Script(["", "a", "", "b"]))
    events = await streamed(await make_app(engine))
    assert [event["delta"].get("text") for event in events if event["type"] == "content_block_delta"] == ["a", "b"]
    assert events[-2]["usage"]["output_tokens"] == 4
