"""The items of responses: whatever a model writes, and however it is cut into deltas."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from openai._types import omit
from openai.lib.streaming.responses._responses import ResponseStreamState

from app.api.responses.asked import CalledTool, CalledTools
from app.contract.errors import ErrorInfo
from app.contract.events import FinishReason
from app.text.answer.parsed import parse_whole
from tests.api.responses.answered import (
    CUSTOM,
    check_stream,
    plan_of,
    stream_bytes,
    streamed,
    text_of,
    typed,
    typed_body,
    types_in,
    whole,
)
from tests.cases import examples
from tests.text.answer.answers import WRITERS, Call, cut

VALUES = st.one_of(st.text('ab"\\{é\u2028', max_size=4), st.integers(-9, 9), st.booleans())
CALLS = st.lists(
    st.tuples(
        st.sampled_from(("search", "get-time", "a_1")),
        st.dictionaries(st.sampled_from(("text", "input", "rest")), VALUES, max_size=2),
    ),
    min_size=1,
    max_size=3,
)
TEXTS = st.text("ab <>[]{}\n|é\u2028", min_size=1, max_size=9)
PLACES = st.lists(st.integers(0, 400), max_size=12)
CALL: Call = ("search", {"text": "hi"})


@st.composite
def answers(draw: st.DrawFn) -> tuple[str, str]:
    """A family, and an answer with reasoning, texts and calls in some order, which may break off."""
    family = draw(st.sampled_from([*WRITERS]))
    parts = [f"<think>{draw(TEXTS)}</think>\n\n"] if draw(st.booleans()) else []
    parts += [
        draw(TEXTS) if draw(st.booleans()) else WRITERS[family](draw(CALLS)) for _ in range(draw(st.integers(0, 3)))
    ]
    text = "".join(parts)
    return family, text[: draw(st.integers(0, len(text)))] if draw(st.booleans()) else text


def written(family: str, text: str) -> tuple[str, str, list[tuple[str, str]]]:
    """What the parsers of a family find in an answer: text, reasoning and calls."""
    parser = plan_of(family).new_parser()
    assert parser is not None
    parsed = parse_whole(parser, text)
    return parsed.text, parsed.reasoning, [(call.name, call.arguments) for call in parsed.calls]


def texts_of(output: Sequence[dict[str, Any]], kind: str) -> str:
    """The texts of all items of a kind."""
    return "".join(text_of(item) for item in output if item["type"] == kind)


@given(answers(), PLACES, PLACES, st.booleans(), st.sampled_from((FinishReason.STOP, FinishReason.LENGTH)))
@example(("hermes", WRITERS["hermes"]([CALL, CALL])), [], [*range(200)], False, FinishReason.STOP)
@settings(max_examples=examples(150))
def test_every_stream_obeys_the_rules_and_is_the_whole_response(answer, places, others, has_summary, reason):
    family, text = answer
    plan = plan_of(family)
    events = streamed(cut(text, places), plan, reason=reason, has_summary=has_summary)
    final = check_stream(events)
    for event in events:
        typed(event)
    assert final == whole(cut(text, others), plan, reason, has_summary=has_summary)
    typed_body(final)
    output = final["output"]
    calls = [(item["name"], item["arguments"]) for item in output if item["type"] == "function_call"]
    assert (texts_of(output, "message"), texts_of(output, "reasoning"), calls) == written(family, text)
    is_stop = reason is FinishReason.STOP
    assert final["status"] == ("completed" if is_stop else "incomplete")
    assert final["incomplete_details"] == (None if is_stop else {"reason": "max_output_tokens"})
    assert all(item["status"] == "completed" for item in output if item["type"] == "message") or not is_stop


@given(answers(), PLACES, PLACES)
@settings(max_examples=examples(80))
def test_tools_that_are_no_functions_obey_them_too(answer, places, others):
    family, text = answer
    events = streamed(cut(text, places), plan_of(family), called=CUSTOM)
    final = check_stream(events)
    for event in events:
        typed(event)
    assert final == whole(cut(text, others), plan_of(family), called=CUSTOM)


@given(answers(), PLACES, st.integers(0, 60))
@settings(max_examples=examples(80))
def test_a_failure_leaves_what_exists_so_far(answer, places, num_pieces):
    family, text = answer
    pieces = cut(text, places)[:num_pieces]
    events = streamed(pieces, plan_of(family), error=ErrorInfo("engine_error", "It broke."))
    final = check_stream(events)
    for event in events:
        typed(event)
    assert final["error"] == {"code": "server_error", "message": "It broke.", "quire_code": "engine_error"}


@given(answers(), PLACES, st.booleans())
@settings(max_examples=examples(80))
def test_the_accumulator_of_openai_takes_every_stream(answer, places, has_summary):
    family, text = answer
    state = ResponseStreamState(text_format=omit, input_tools=omit)
    events = streamed(cut(text, places), plan_of(family), has_summary=has_summary)
    for event in events:
        state.handle_event(typed(event))
    found = state._completed_response
    assert found is not None
    assert found.output_text == written(family, text)[0]
    assert [item.id for item in found.output] == [item["id"] for item in events[-1]["response"]["output"]]


@given(answers(), PLACES, st.integers(-1, 80))
@settings(max_examples=examples(80))
def test_who_comes_back_gets_the_bytes_behind_the_last_number(answer, places, after):
    family, text = answer
    pieces = cut(text, places)
    body = stream_bytes(pieces, plan_of(family))
    events = body.split(b"\n\n")
    rest = b"\n\n".join(events[min(after + 1, len(events) - 1) :])
    assert stream_bytes(pieces, plan_of(family), after=after) == rest


@pytest.mark.parametrize("family", WRITERS)
@pytest.mark.parametrize("size", [1, 1000])
def test_two_calls_are_two_items_in_one_delta_and_in_many(family, size):
    text = WRITERS[family]([CALL, ("a_1", {"is_new": True})])
    pieces = [text[start : start + size] for start in range(0, len(text), size)]
    events = streamed(pieces, plan_of(family))
    first, second = check_stream(events)["output"]
    assert not [name for name in types_in(events) if "output_text" in name]
    assert [(first["name"], json.loads(first["arguments"])), (second["name"], json.loads(second["arguments"]))] == [
        CALL,
        ("a_1", {"is_new": True}),
    ]
    assert first["call_id"] != second["call_id"] and first["status"] == second["status"] == "completed"


def test_a_text_behind_a_call_is_another_message():
    text = f"One{WRITERS['hermes']([CALL])}two"
    output = check_stream(streamed([text], plan_of()))["output"]
    assert [(item["type"], text_of(item)) for item in output] == [
        ("message", "One"),
        ("function_call", '{"text": "hi"}'),
        ("message", "two"),
    ]


@pytest.mark.parametrize("reason", [FinishReason.STOP, FinishReason.LENGTH])
def test_a_call_that_breaks_off_is_incomplete(reason):
    text = WRITERS["hermes"]([CALL])
    [item] = check_stream(streamed([text[:50]], plan_of(), reason=reason))["output"]
    assert (item["status"], item["arguments"]) == ("incomplete", text[:50].partition('"arguments": ')[2])


@pytest.mark.parametrize(
    ("text", "kind"), [("One", "message"), ("<think>One", "reasoning"), ("<think>One</think>two", "message")]
)
def test_what_a_limit_cuts_off_is_incomplete_and_what_came_before_is_not(text, kind):
    *before, last = check_stream(streamed([text], plan_of(), reason=FinishReason.LENGTH))["output"]
    assert (last["type"], last["status"]) == (kind, "incomplete")
    assert all(item["status"] == "completed" for item in before)


def test_calls_that_are_complete_stay_so_when_a_limit_cuts_off_the_text_behind_them():
    text = WRITERS["hermes"]([CALL]) + "and th"
    call, message = check_stream(streamed([text], plan_of(), reason=FinishReason.LENGTH))["output"]
    assert (call["status"], message["status"]) == ("completed", "incomplete")


@pytest.mark.parametrize("text", ["", "<think></think>", "<think>\n\n</think>\n\n"])
def test_an_answer_without_text_has_no_items(text):
    assert check_stream(streamed([text], plan_of()))["output"] == []


def test_reasoning_is_raw_text_or_a_summary():
    raw = check_stream(streamed(["<think>Hm.</think>So."], plan_of()))["output"][0]
    assert (raw["summary"], raw["content"]) == ([], [{"type": "reasoning_text", "text": "Hm."}])
    summary = check_stream(streamed(["<think>Hm.</think>So."], plan_of(), has_summary=True))["output"][0]
    assert (summary["summary"], summary["content"]) == ([{"type": "summary_text", "text": "Hm."}], None)
    assert raw["encrypted_content"] is None and raw["id"] == summary["id"]


def test_a_function_of_a_namespace_has_its_bare_name_and_its_namespace():
    called = CalledTools({"search": CalledTool("function", "find", "web")})
    events = streamed([WRITERS["hermes"]([CALL])], plan_of(), called=called)
    [item] = check_stream(events)["output"]
    assert (item["name"], item["namespace"]) == ("find", "web")
    assert "namespace" not in check_stream(streamed([WRITERS["hermes"]([CALL])], plan_of()))["output"][0]


@pytest.mark.parametrize(
    ("arguments", "given"),
    [
        ('{"input": "a\\n\\"b"}', 'a\n"b'),
        ('{"input": ""}', ""),
        ('{"input": 1}', '{"input": 1}'),
        ('{"text": "a"}', '{"text": "a"}'),
        ('{"input": "a', '{"input": "a'),
    ],
)
def test_a_custom_tool_gets_its_text_in_one_piece(arguments, given):
    text = f'<tool_call>{{"name": "a_1", "arguments": {arguments}'
    text += "}</tool_call>" if arguments.endswith("}") else ""
    events = streamed([*text], plan_of(), called=CUSTOM)
    [item] = check_stream(events)["output"]
    assert (item["type"], item["name"], item["input"]) == ("custom_tool_call", "a_1", given)
    assert types_in(events).count("custom_tool_call_input.delta") == bool(given)


@pytest.mark.parametrize(
    ("arguments", "given", "status"),
    [
        ('{"query": "warm"}', {"query": "warm"}, "completed"),
        ("{}", {}, "completed"),
        ('{"query": "wa', {"arguments": '{"query": "wa'}, "incomplete"),
    ],
)
def test_a_search_for_tools_has_an_object(arguments, given, status):
    text = f'<tool_call>{{"name": "get-time", "arguments": {arguments}'
    text += "}</tool_call>" if status == "completed" else ""
    events = streamed([*text], plan_of(), called=CUSTOM)
    [item] = check_stream(events)["output"]
    assert (item["type"], item["arguments"], item["status"]) == ("tool_search_call", given, status)
    assert item["execution"] == "client" and types_in(events)[2:4] == ["output_item.added", "output_item.done"]


def test_ids_are_a_function_of_the_response_and_the_place():
    text = f"<think>Hm.</think>One{WRITERS['hermes']([CALL])}"
    first, again = (check_stream(streamed(cut(text, places), plan_of())) for places in ([], [3, 9, 40]))
    assert first == again
    other = check_stream(streamed([text], plan_of(), response_id="resp_" + "0" * 32))
    pairs = zip(first["output"], other["output"], strict=True)
    assert all(item["id"] != its["id"] for item, its in pairs)
    assert [item["id"].partition("_")[0] for item in first["output"]] == ["rs", "msg", "fc"]
