"""Answers that repeat themselves end on every route, at the same token, and say why; without the field none does.

Others: foundry-local#22 (a chat ends in a loop of two or three words until Ctrl-C), qwen-code#1403 (a sentence is
repeated until the limit), marie-ai#132. A strong bias makes the tiny model say one token for ever; for the routes that
have no bias there is a model that says its last token again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from app.client.client import connect
from app.contract.sampling_params import SamplingParams
from app.llm import LLM
from tests.checkpoints import damaged_copy, tiny
from tests.regressions.running_server import run_server

TOKEN = 60
ENDLESS = {"logit_bias": {str(TOKEN): 100.0}, "temperature": 0.0, "max_tokens": 300}
PROMPT = list(range(20, 40))
MESSAGES = [{"role": "user", "content": "the quick brown fox"}]
REPEATED = ("length", "repetition", 256)
PLAIN = ("length", None, 300)


def end_of(choice: dict[str, Any], usage: dict[str, Any]) -> tuple[str, Any, int]:
    """Why a choice ended, and after how many tokens."""
    assert choice.get("stop_reason", "") is not None, "the field is there only with a reason"
    return choice["finish_reason"], choice.get("stop_reason"), usage["completion_tokens"]


@pytest.mark.parametrize(("fields", "end"), [({"repetition_stop": True}, REPEATED), ({}, PLAIN)])
async def test_an_answer_that_repeats_itself_ends_on_every_route(fields, end):
    ends = []
    async with run_server() as server:
        for path, body in (("chat/completions", {"messages": MESSAGES}), ("completions", {"prompt": PROMPT})):
            sent = {**body, **ENDLESS, **fields}
            answer = (await server.client.post(f"/v1/{path}", json=sent)).json()
            ends.append(end_of(answer["choices"][0], answer["usage"]))
            lines = (
                await server.client.post(
                    f"/v1/{path}",
                    json={**sent, "stream": True, "stream_options": {"include_usage": True}},
                    headers={"accept": "application/x-ndjson"},
                )
            ).text.split("\n")
            *_, last, counts = [json.loads(line) for line in lines if line]
            ends.append(end_of(last["choices"][0], counts["usage"]))
        async with connect(server.url) as client:
            stream = await client.chat(MESSAGES, **ENDLESS, **fields)
            await stream.text()
            ends.append((*stream.ends[0], stream.usage["completion_tokens"]))
    assert ends == [end] * 5


@pytest.fixture
def parrot(tmp_path: Path) -> Path:
    """A model whose layers add nothing to the embedding, and whose most likely token is the one that it has read."""
    folder = damaged_copy(tiny("Llama"), tmp_path / "parrot")
    tensors = load_file(folder / "model.safetensors")
    for name, tensor in tensors.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            tensor.zero_()
        elif name.endswith("norm.weight"):
            tensor.fill_(1.0)
    embedding = tensors["model.embed_tokens.weight"]
    tensors["lm_head.weight"] = embedding / embedding.norm(dim=1, keepdim=True)
    save_file(tensors, folder / "model.safetensors")
    return folder


# The context leaves 485 tokens, to which these limits are lowered.
MESSAGE = {"messages": MESSAGES, "max_tokens": 32_000, "temperature": 0.0}
RESPONSE = {"input": MESSAGES, "max_output_tokens": 32_000, "temperature": 0.0}


@pytest.mark.parametrize(
    ("fields", "count", "reason"),
    [({"repetition_stop": True}, 256, "max_tokens"), ({}, 485, "model_context_window_exceeded")],
)
async def test_an_answer_that_repeats_itself_ends_on_the_routes_of_agents(parrot: Path, fields, count, reason):
    async with run_server(folder=parrot) as server:
        message = (await server.client.post("/v1/messages", json={**MESSAGE, **fields})).json()
        *_, delta, _ = await server.streamed("/v1/messages", **MESSAGE, **fields)
        response = (await server.client.post("/v1/responses", json={**RESPONSE, **fields})).json()
        *_, last = await server.streamed("/v1/responses", **RESPONSE, **fields)
    for end, usage in ((message, message["usage"]), (delta["delta"], delta["usage"])):
        assert (end["stop_reason"], usage["output_tokens"]) == (reason, count)
    for ended in (response, last["response"]):
        assert (ended["status"], ended["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
        assert ended["usage"]["output_tokens"] == count


async def test_choices_of_several_prompts_have_their_stop_reasons():
    async with run_server() as server:
        body = {"prompt": [PROMPT, PROMPT[:9]], "n": 2, "stop_token_ids": [TOKEN], "repetition_stop": True, **ENDLESS}
        answer = (await server.client.post("/v1/completions", json=body)).json()
    assert [(one["index"], one["finish_reason"], one["stop_reason"]) for one in answer["choices"]] == [
        (index, "stop", TOKEN) for index in range(4)
    ]


async def test_beam_search_and_other_values_are_refused():
    async with run_server() as server:
        for fields, code in (({"use_beam_search": True}, "unsupported_parameter"), ({}, "invalid_value")):
            value = True if fields else "yes"
            body = {"messages": MESSAGES, "repetition_stop": value, **fields}
            answer = await server.client.post("/v1/chat/completions", json=body)
            error = answer.json()["error"]
            assert (answer.status_code, error["param"], error["code"]) == (400, "repetition_stop", code), error


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    torch.set_num_threads(1)
    loaded = LLM(str(tiny("Llama")), num_kv_blocks=64)
    yield loaded
    loaded.close()


@pytest.mark.parametrize(
    ("fields", "end"),
    [
        ({"repetition_stop": True}, REPEATED),
        ({"repetition_stop": True, "min_tokens": 280}, ("length", "repetition", 280)),
        ({"stop_token_ids": [TOKEN]}, ("stop", TOKEN, 1)),
        ({}, PLAIN),
    ],
)
def test_outputs_of_the_offline_engine_have_the_stop_reason(llm: LLM, fields, end):
    params = SamplingParams(**{**ENDLESS, "logit_bias": {TOKEN: 100.0}, **fields})
    (result,) = llm.generate([PROMPT], params, use_tqdm=False)
    assert (result.outputs[0].finish_reason, result.outputs[0].stop_reason, result.usage.completion_tokens) == end
