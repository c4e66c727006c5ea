"""A real, small model under a hundred schemas, and with tools: `make real-model`, then `pytest -m real`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from app import LLM, SamplingParams, StructuredOutputs
from app.checkpoint.hub import smollm2
from benchmarks.limits import limits
from benchmarks.schemas.cases import cases
from benchmarks.schemas.chats import ask_all
from benchmarks.schemas.checks import fault_of_json, faults_of_calls, leaked_marks
from benchmarks.schemas.command import CONTEXT, SAMPLING, bodies_with_tools, body_of, measure, verdicts_of
from benchmarks.schemas.conversations import conversations
from benchmarks.server_process import serving

# 250 answers of up to 1,024 tokens each: minutes on two free cores, an hour on busy ones.
pytestmark = [pytest.mark.real, pytest.mark.timeout(4 * 3600)]
NUM_COMPARED = 12


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A server with the model."""
    if not smollm2.local_file().exists():
        pytest.skip("there is no real model; run `make real-model`")
    with serving(SAMPLING["model"], "--max-model-len", str(CONTEXT)) as server:
        yield f"http://127.0.0.1:{server.port}"


def test_answers_over_http_end_and_validate_and_calls_do(url: str):
    assert [str(verdict) for verdict in verdicts_of([asyncio.run(measure(url, 0))]) if verdict.is_missed] == []


def test_llm_gives_the_answers_of_the_server(url: str):
    asked = cases()
    params = [
        SamplingParams(
            temperature=SAMPLING["temperature"],
            top_p=SAMPLING["top_p"],
            max_tokens=SAMPLING["max_tokens"],
            seed=index,
            structured_outputs=StructuredOutputs(json=case.schema),
        )
        for index, case in enumerate(asked)
    ]
    llm = LLM(SAMPLING["model"], max_model_len=CONTEXT, num_kv_blocks=2000)
    outputs = [each.outputs[0] for each in llm.chat([case.messages for case in asked], params, use_tqdm=False)]
    llm.close()
    stopped = [
        (case, output.text) for case, output in zip(asked, outputs, strict=True) if output.finish_reason == "stop"
    ]
    assert [fault for case, text in stopped if (fault := fault_of_json(text, case.schema))] == []
    assert len(stopped) >= limits("schemas")["schemas: answers that stop"].value
    bodies = [body_of(case, index) for index, case in enumerate(asked[:NUM_COMPARED])]
    served = asyncio.run(ask_all(url, bodies))
    assert [answer.content for answer in served] == [output.text for output in outputs[:NUM_COMPARED]]


def test_optional_calls_under_a_grammar_validate_too(url: str):
    """With `strict` the schemas of tools bind calls of `auto` as well."""
    talks = conversations()[:10]
    bodies = [{**body, "parallel_tool_calls": False} for body in bodies_with_tools(talks, "auto", 100)]
    for body in bodies:
        body["tools"] = [{**tool, "function": {**tool["function"], "strict": True}} for tool in body["tools"]]
    for talk, answer in zip(talks, asyncio.run(ask_all(url, bodies)), strict=True):
        assert answer.finish_reason and not leaked_marks(answer.content)
        assert answer.finish_reason == "length" or not faults_of_calls(talk, answer)
