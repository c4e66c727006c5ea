"""A real model answers: needs `make real-model`, and is run by `pytest -m real`."""

from __future__ import annotations

import json

import pytest

from app import LLM, SamplingParams, StructuredOutputs
from app.checkpoint.hub import smollm2

pytestmark = pytest.mark.real
FOLDER = smollm2.local_file().parent / "bf16"


@pytest.fixture(scope="module")
def llm():
    """The converted model."""
    if not FOLDER.exists():
        pytest.skip("there is no real model; run `make real-model`")
    llm = LLM(str(FOLDER), max_model_len=1024, num_kv_blocks=128)
    yield llm
    llm.close()


def test_the_real_model_knows_the_capital_of_france(llm: LLM):
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    (output,) = llm.chat(messages, SamplingParams(temperature=0, max_tokens=32), use_tqdm=False)
    assert output.outputs[0].text == "The capital of France is Paris."
    assert output.outputs[0].finish_reason == "stop"


def test_calls_beside_a_schema_have_the_arguments_of_their_tool(llm: LLM):
    """Not those of the example in the prompt, which this small model copies."""
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    tool = {"type": "function", "function": {"name": "weather", "description": "Tell it.", "parameters": parameters}}
    answer = StructuredOutputs(json={"type": "object", "properties": {"answer": {"type": "string", "maxLength": 40}}})
    params = SamplingParams(temperature=0.7, seed=5, n=8, max_tokens=80, structured_outputs=answer)
    question = [{"role": "user", "content": "How is the weather in Oslo?"}]
    [result] = llm.chat(question, params, use_tqdm=False, tools=[tool], parallel_tool_calls=False)
    calls = [call for output in result.outputs for call in output.tool_calls]
    assert len(calls) >= 4 and {call.name for call in calls} == {"weather"}
    right = [call for call in calls if call.arguments.replace(" ", "").startswith('{"city":"')]
    assert len(right) >= 0.75 * len(calls), "with placeholders in the example none was"


def test_the_tokenizer_splits_numbers_into_digits(llm: LLM):
    ids = llm.tokenizer.encode("In 2024")
    tokens = json.loads((FOLDER / "tokenizer.json").read_text())["model"]["vocab"]
    assert len(ids) == 6 and [tokens[digit] for digit in "2024"] == list(ids)[-4:]
