"""The blocks of a message: a stream is the whole message in pieces, whatever the answer and however it is cut."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.api.anthropic.message_answers import TextContent, ThinkingContent, ToolUseContent
from app.api.anthropic.message_assembler import BlockDelta, BlockStart, BlockStop, MessageAssembler, MessageContent
from app.api.anthropic.messages_wire import MessagesWire
from app.api.anthropic.parse_message import AskedMessage
from app.api.wire.api_request import ApiRequest
from app.contract.events import ChoiceEnd, Finished, FinishReason, Timings, TokenDelta, Usage
from app.text.answer.answer_format import AnswerFormat
from app.text.answer.answer_plan import AnswerPlan
from app.text.answer.reasoning import STYLES
from app.text.calls.formats import FORMATS
from app.text.reading.answer_events import Arguments, CallBegin, CallEnd, Reasoning, Text
from tests.api.anthropic.messages import events_of, message_of
from tests.cases import examples
from tests.fakes import make_request
from tests.text.answer.answers import AS_PYTHON, SCHEMAS, WITH_PARAMETERS, WRITERS, calls_of, cut, parse_calls
from tests.text.calls.test_formats import CALLS, PLACE, PLACES, PLAIN, way_of

SPAN = Timings(0.1, 0.2, 0.3)


def request_of(name: str | None) -> ApiRequest:
    """The request for an answer with reasoning and calls of a family; None: nothing parses it."""
    plan = None if name is None else AnswerPlan(AnswerFormat(FORMATS[name], STYLES["think"]), SCHEMAS)
    asked = AskedMessage(is_lowered=False)
    request = make_request("msg_1")
    return ApiRequest(request, "m", 0, True, False, (), lambda _: b"", answer=plan, asked=asked)


def deltas_of(pieces: list[str]) -> list[TokenDelta]:
    return [TokenDelta("msg_1", 0, number, (number,), piece) for number, piece in enumerate(pieces, 1)]


def streamed(name: str | None, pieces: list[str], end: ChoiceEnd) -> dict:
    """The message that a client of a stream accumulates."""
    wire, usage = MessagesWire(request_of(name)), Usage(3, len(pieces))
    body = b"".join(wire.first()) + b"".join(map(wire.delta, deltas_of(pieces)))
    body += wire.finish(Finished("msg_1", 0, end, usage, SPAN)) + wire.last(usage, SPAN)
    return message_of(events_of(body))


def whole(name: str | None, pieces: list[str], end: ChoiceEnd) -> dict:
    """The message of a JSON body."""
    wire = MessagesWire(request_of(name))
    for delta in deltas_of(pieces):
        wire.keep(delta)
    body = wire.whole({0: end}, Usage(3, len(pieces)), SPAN)
    return json.loads(b"".join(body.pieces))


def check(name: str | None, text: str, places: list[int], end: ChoiceEnd) -> dict:
    """Every cut of an answer has the same message, streamed and whole; return it."""
    expected = whole(name, [text], end)
    for pieces in ([text], cut(text, places), list(text)):
        counts = {"usage": expected["usage"] | {"output_tokens": len(pieces)}}
        assert streamed(name, pieces, end) == expected | counts
        assert whole(name, pieces, end) == expected | counts
    return expected


@pytest.mark.parametrize("name", WRITERS)
@settings(max_examples=examples(25), deadline=None)
@given(data=st.data())
def test_an_answer_is_the_same_message_however_it_is_cut(name, data):
    calls, before, after, places = map(data.draw, (CALLS[way_of(name)], PLAIN, PLAIN, PLACES))
    thought = data.draw(st.sampled_from(["", "Hm.", "One\n\ntwo"]))
    written = before + WRITERS[name](calls) + after
    message = check(
        name, f"<think>{thought}</think>{written}" if thought else written, places, ChoiceEnd(FinishReason.STOP)
    )
    kinds = [block["type"] for block in message["content"]]
    assert kinds[: bool(thought)] == ["thinking"] * bool(thought)
    found = [(block["name"], block["input"]) for block in message["content"] if block["type"] == "tool_use"]
    assert found == calls_of(parse_calls(name, written))
    assert "".join(block["text"] for block in message["content"] if block["type"] == "text") == before + after
    assert message["stop_reason"] == "tool_use"
    assert len({block["id"] for block in message["content"] if block["type"] == "tool_use"}) == len(calls)


@pytest.mark.parametrize("name", WRITERS)
@settings(max_examples=examples(25), deadline=None)
@given(data=st.data())
def test_an_answer_that_breaks_off_is_the_same_message_however_it_is_cut(name, data):
    calls, before, place, places = map(data.draw, (CALLS[way_of(name)], PLAIN, PLACE, PLACES))
    text = f"<think>Hm.</think>{before}{WRITERS[name](calls)}"
    message = check(name, text[: place % (len(text) + 1)], places, ChoiceEnd(FinishReason.LENGTH))
    assert message["stop_reason"] == "max_tokens"


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=30), PLACES)
@settings(deadline=None)
def test_a_text_that_nothing_parses_is_one_block_or_none(text, places):
    message = check(None, text, places, ChoiceEnd(FinishReason.STOP))
    assert message["content"] == ([{"type": "text", "text": text, "citations": None}] if text else [])
    assert message["stop_reason"] == "end_turn"


@pytest.mark.parametrize("name", [name for name in WRITERS if name not in (*WITH_PARAMETERS, *AS_PYTHON)])
def test_no_character_of_a_call_is_text(name):
    message = check(name, WRITERS[name]([("search", {"text": "a<b"})]), [3, 9], ChoiceEnd(FinishReason.STOP))
    assert [block["type"] for block in message["content"]] == ["tool_use"]


def test_blocks_alternate_and_never_overlap():
    assembler = MessageAssembler("msg_1")
    events = [Text("a"), Text("b"), Reasoning("c"), Text(""), CallBegin(0, "f"), Arguments(0, "{}"), CallEnd(0)]
    changes = assembler.take(events) + assembler.take([Text("d")]) + assembler.close() + assembler.close()
    assert [type(change) for change in changes] == [
        BlockStart, BlockDelta, BlockDelta, BlockStop,
        BlockStart, BlockDelta, BlockDelta, BlockStop,
        BlockStart, BlockDelta, BlockStop,
        BlockStart, BlockDelta, BlockStop,
    ]  # fmt: skip
    assert [change.number for change in changes] == [0] * 4 + [1] * 4 + [2] * 3 + [3] * 3


def test_a_signature_is_never_empty_and_that_of_the_text():
    """An empty one is refused by other servers, to which a conversation may move."""
    signatures = []
    for pieces in (["a", "bc"], ["abc"], ["abd"]):
        assembler, content = MessageAssembler("msg_1"), MessageContent()
        content.add(assembler.take([Reasoning(piece) for piece in pieces]) + assembler.close())
        [block] = content.blocks
        assert isinstance(block, ThinkingContent) and block.thinking == "".join(pieces)
        signatures.append(block.signature)
    assert signatures[0] == signatures[1] != signatures[2]
    assert all(len(signature) == 24 for signature in signatures)


@pytest.mark.parametrize(
    ("arguments", "written"),
    [
        ('{"b": 1, "a": 1e300}', b'{"b": 1, "a": 1e300}'),
        ('{"a": 123456789012345678901234567890}', b'{"a": 123456789012345678901234567890}'),
        ("{}", b"{}"),
    ],
)
def test_arguments_are_written_as_the_model_wrote_them(arguments, written):
    assembler, content = MessageAssembler("msg_1"), MessageContent()
    content.add(assembler.take([CallBegin(0, "f"), Arguments(0, arguments), CallEnd(0)]))
    [block] = content.blocks
    assert isinstance(block, ToolUseContent) and bytes(block.input) == written


@pytest.mark.parametrize("arguments", ["", '{"a": ', "[1]", "null", "NaN", '{"a": NaN}', '{"a": 1} x', "[" * 5000])
def test_what_is_no_object_is_an_empty_input(arguments):
    assembler, content = MessageAssembler("msg_1"), MessageContent()
    content.add(assembler.take([CallBegin(0, "f"), Arguments(0, arguments)]) + assembler.close())
    assert content.blocks == [ToolUseContent(content.blocks[0].id, "f", {})]


def test_ids_of_calls_are_those_of_their_place():
    def ids(message_id: str) -> list[str]:
        content = MessageContent()
        content.add(MessageAssembler(message_id).take([CallBegin(0, "f"), CallEnd(0), CallBegin(1, "f"), CallEnd(1)]))
        return [block.id for block in content.blocks if not isinstance(block, TextContent | ThinkingContent)]

    first, second = ids("msg_1")
    assert [first, second] == ids("msg_1") and first != second
    assert not {first, second} & {*ids("msg_2")}
    assert all(one.startswith("toolu_") and len(one) == 30 for one in (first, second))
