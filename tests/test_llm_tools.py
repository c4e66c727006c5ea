"""Offline chats with tools, with the embedded model and real grammars."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from app.contract.errors import InvalidValue, UnsupportedParameter
from app.contract.grammar import StructuredOutputs
from app.contract.sampling_params import SamplingParams
from app.llm import LLM
from tests.text.templates import ONE_CALL, WHOLE_CHAT

QUESTION = {"role": "user", "content": "How warm is it in Oslo?"}
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}, "unit": {"enum": ["C", "F"]}},
    "required": ["city", "unit"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": name, "description": "It tells.", "parameters": PARAMETERS}}
    for name in ("weather", "forecast")
]


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    loaded = LLM("guide", chat_template=str(WHOLE_CHAT), max_model_len=2048, num_kv_blocks=256)
    yield loaded
    loaded.close()


@pytest.mark.parametrize("seed", range(4))
def test_a_named_call_satisfies_its_schema(llm: LLM, seed: int):
    choice = {"type": "function", "function": {"name": "forecast"}}
    params = SamplingParams(max_tokens=200, seed=seed, temperature=1.0)
    [result] = llm.chat([QUESTION], params, use_tqdm=False, tools=TOOLS, tool_choice=choice)
    [output] = result.outputs
    assert output.finish_reason == "tool_calls"
    [call] = output.tool_calls
    assert call.name == "forecast" and call.id.startswith("call_")
    arguments = json.loads(call.arguments)
    assert set(arguments) == {"city", "unit"}
    assert len(arguments["city"]) <= 20 and arguments["unit"] in ("C", "F")
    assert output.text == ""


def test_a_required_call_is_one_of_the_tools(llm: LLM):
    params = SamplingParams(n=3, max_tokens=200, seed=1, temperature=1.0)
    [result] = llm.chat(
        [QUESTION], params, use_tqdm=False, tools=TOOLS, tool_choice="required", parallel_tool_calls=False
    )
    assert {call.name for output in result.outputs for call in output.tool_calls} <= {"weather", "forecast"}
    assert [len(output.tool_calls) for output in result.outputs] == [1, 1, 1]


def test_a_tool_may_have_many_optional_parameters(llm: LLM):
    properties = {f"k{number}": {"type": "null"} for number in range(85)}
    tool = {"type": "function", "function": {"name": "f", "parameters": {"properties": properties}}}
    choice = {"type": "function", "function": {"name": "f"}}
    [result] = llm.chat([QUESTION], SamplingParams(max_tokens=20), use_tqdm=False, tools=[tool], tool_choice=choice)
    assert [call.name for call in result.outputs[0].tool_calls] == ["f"]


def test_without_a_choice_the_answer_is_free(llm: LLM):
    params = SamplingParams(max_tokens=60, temperature=0.0)
    [free] = llm.chat([QUESTION], params, use_tqdm=False, tools=TOOLS)
    [single] = llm.chat([QUESTION], params, use_tqdm=False, tools=TOOLS, parallel_tool_calls=False)
    assert free.outputs[0].text == single.outputs[0].text != ""
    assert free.outputs[0].tool_calls == []
    [plain] = llm.chat([QUESTION], params, use_tqdm=False, tools=TOOLS, tool_choice="none")
    assert len(plain.prompt_token_ids) < len(free.prompt_token_ids)


def test_calls_and_results_become_part_of_the_prompt(llm: LLM):
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
    messages = [
        QUESTION,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "minus 4"},
    ]
    [result] = llm.chat(messages, SamplingParams(max_tokens=1), use_tqdm=False, tools=TOOLS)
    assert "minus 4" in llm.tokenizer.decode(result.prompt_token_ids)
    call["function"]["arguments"] = '{"city": "Os'
    [result] = llm.chat(messages, SamplingParams(max_tokens=1), use_tqdm=False, tools=TOOLS)
    assert '{"arguments": "{\\"city\\": \\"Os"}' in llm.tokenizer.decode(result.prompt_token_ids)


def test_an_answer_is_a_call_or_the_structured_output(llm: LLM):
    tool = {"type": "function", "function": {**TOOLS[0]["function"], "strict": True}}
    asked = StructuredOutputs(regex="[0-9]{3}")
    params = SamplingParams(max_tokens=600, structured_outputs=asked, n=6, temperature=1.5, seed=6)
    [result] = llm.chat([QUESTION], params, use_tqdm=False, tools=[tool])
    for output in result.outputs:
        is_number = re.fullmatch("[0-9]{3}", output.text) is not None
        assert is_number is (not output.tool_calls)
        assert output.finish_reason == ("stop" if is_number else "tool_calls")
    [result] = llm.chat([QUESTION], params, use_tqdm=False, tools=[tool], tool_choice="none")
    assert all(re.fullmatch("[0-9]{3}", output.text) for output in result.outputs)


ONE_VALUE = {"type": "object", "properties": {"a": {"enum": ["xay"]}}, "required": ["a"]}


@pytest.mark.parametrize(
    ("ending", "arguments", "reason"),
    [
        ({"stop": ["_call"]}, None, "stop"),
        ({"max_tokens": 3}, None, "length"),
        ({"stop": ['y"']}, '{ "a" : "xa', "stop"),
        ({"stop": ["</tool"]}, '{ "a" : "xay"}', "tool_calls"),
    ],
    ids=str,
)
def test_a_required_call_that_is_cut_is_neither_text_nor_announced(llm: LLM, ending, arguments, reason):
    tool = {"type": "function", "function": {"name": "f", "parameters": ONE_VALUE}}
    params = SamplingParams(**{"max_tokens": 60, "temperature": 0.0, **ending})
    [result] = llm.chat(
        [QUESTION], params, use_tqdm=False, tools=[tool], tool_choice="required", parallel_tool_calls=False
    )
    [output] = result.outputs
    assert (output.text, output.finish_reason) == ("", reason)
    found = [call.arguments.replace(" ", "") for call in output.tool_calls]
    assert found == ([] if arguments is None else [arguments.replace(" ", "")])


def test_a_required_call_has_no_structured_output_beside_it(llm: LLM):
    params = SamplingParams(max_tokens=20, structured_outputs=StructuredOutputs(regex="a"))
    with pytest.raises(InvalidValue, match=r"^structured_outputs and tool_choice both say"):
        llm.chat([QUESTION], params, use_tqdm=False, tools=TOOLS, tool_choice="required")


@pytest.mark.parametrize("field", ["use_beam_search", "ignore_eos"])
def test_parameters_that_contradict_a_required_call_are_rejected(llm: LLM, field: str):
    params = SamplingParams(max_tokens=20, **{field: True})
    with pytest.raises(InvalidValue, match=field):
        llm.chat([QUESTION], params, use_tqdm=False, tools=TOOLS, tool_choice="required")


def test_required_calls_of_a_template_that_takes_one_are_taken_as_history(tmp_path: Path):
    """As with Llama 3.1."""
    (tmp_path / "one.jinja").write_text(ONE_CALL)
    llm = LLM("guide", chat_template=str(tmp_path / "one.jinja"), max_model_len=2048, num_kv_blocks=256)
    params = SamplingParams(n=4, max_tokens=200, seed=1, temperature=1.0)
    [result] = llm.chat([QUESTION], params, use_tqdm=False, tools=TOOLS, tool_choice="required")
    assert [output.finish_reason for output in result.outputs] == ["tool_calls"] * 4
    for output in result.outputs:
        [call] = output.tool_calls
        function = {"name": call.name, "arguments": call.arguments}
        calling = {"role": "assistant", "tool_calls": [{"id": call.id, "type": "function", "function": function}]}
        answered = {"role": "tool", "tool_call_id": call.id, "content": "12"}
        short = SamplingParams(max_tokens=2)
        assert llm.chat([QUESTION, calling, answered], short, use_tqdm=False, tools=TOOLS)[0].outputs
    llm.close()


def test_messages_and_variables_are_checked_as_those_of_the_server_are(llm: LLM):
    image = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "a"}}]}
    with pytest.raises(UnsupportedParameter, match="only text is supported"):
        llm.chat([image])
    for name in ("self", "namespace", "messages"):
        with pytest.raises(UnsupportedParameter, match=f"^chat_template_kwargs.{name} "):
            llm.chat([{"role": "user", "content": "Hi"}], chat_template_kwargs={name: 1})


@pytest.mark.parametrize("second", ["b", "(?=b)"])
def test_no_grammar_is_leased_after_a_call(llm: LLM, second: str):
    each = [SamplingParams(structured_outputs=StructuredOutputs(regex=regex), max_tokens=2) for regex in ("a", second)]
    with nullcontext() if second == "b" else pytest.raises(InvalidValue):
        llm.generate([[5], [6]], each, use_tqdm=False)
    assert not any(entry.leases for entry in llm._grammars.entries.by_grammar.values())
