"""Log-probabilities are those of the raw logits, for any number requested, any sampling parameters and any API.

Others: vllm#44319 (values change with the number requested), vllm#9453 (sampling parameters change them),
vllm#5699, vllm-project/vime#64 (raw or processed is undocumented).
"""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest
import torch

from tests.checkpoints import tiny
from tests.engine.driving import LogitRecorder, Run, build, request
from tests.regressions.running_server import RunningServer, run_server

NUM_NEW = 8
COUNTS = (0, 1, 2, 5, 20)
PROMPT = tuple(range(10, 40))
# All of these select the most likely token.
GREEDY_PARAMS = [
    {"temperature": 0},
    {"temperature": 2.0, "top_k": 1},
    {"temperature": 0.3, "top_p": 1e-9},
    {"temperature": 1.0, "min_p": 1.0},
    {"temperature": 1e-30},
]
MESSAGES = [{"role": "user", "content": "the quick brown fox"}]


def best(entry: dict[str, Any], count: int) -> list[tuple[str, float]]:
    """The first `count` most likely tokens of a chat logprobs entry."""
    return [(other["token"], other["logprob"]) for other in entry["top_logprobs"][:count]]


async def unstreamed_entries(server: RunningServer, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The log-probabilities of a chat completion without streaming."""
    response = (await server.client.post("/v1/chat/completions", json=body)).json()
    return response["choices"][0]["logprobs"]["content"]


async def streamed_entries(server: RunningServer, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The log-probabilities of a streamed chat completion."""
    events = await server.streamed("/v1/chat/completions", **body)
    chunks = [event["choices"][0]["logprobs"] for event in events]
    return [entry for chunk in chunks if chunk for entry in chunk["content"]]


async def test_values_depend_neither_on_their_number_nor_on_streaming():
    """All requests run at once, so that requests with different numbers share batches."""
    async with run_server() as server:
        bodies = [
            {"messages": MESSAGES, "max_tokens": NUM_NEW, "ignore_eos": True, "logprobs": True, "top_logprobs": count}
            | params
            for count in COUNTS
            for params in GREEDY_PARAMS
        ]
        requests = [fetch(server, body) for body in bodies for fetch in (unstreamed_entries, streamed_entries)]
        *results, fullest = [*await asyncio.gather(*requests), await unstreamed_entries(server, bodies[-1])]
        assert len(fullest) == NUM_NEW
        assert all(len(entry["top_logprobs"]) == 20 for entry in fullest)
        for number, entries in enumerate(results):
            count = bodies[number // 2]["top_logprobs"]
            for entry, full in zip(entries, fullest, strict=True):
                assert (entry["token"], entry["logprob"], entry["bytes"]) == (
                    full["token"],
                    full["logprob"],
                    full["bytes"],
                )
                assert len(entry["top_logprobs"]) == count and best(entry, 20) == best(full, count)
        for entry in fullest:
            values = [value for _, value in best(entry, 20)]
            assert values == sorted(values, reverse=True) and values[0] == entry["logprob"]
            assert sum(map(math.exp, values)) < 1.0


async def test_completions_and_chat_return_the_same_values():
    """Completions name tokens by their text: tokens that are parts of characters must not overwrite each other."""
    async with run_server() as server:
        text = "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in MESSAGES)
        body = {"prompt": f"{text}<|im_start|>assistant\n", "max_tokens": NUM_NEW, "logprobs": 20}
        completion = (await server.complete(**body)).json()["choices"][0]["logprobs"]
        chat = {"messages": MESSAGES, "max_tokens": NUM_NEW, "temperature": 0, "ignore_eos": True, "logprobs": True}
        entries = await unstreamed_entries(server, chat | {"top_logprobs": 20})
        assert completion["token_logprobs"] == [entry["logprob"] for entry in entries]
        for entry, name, top in zip(entries, completion["tokens"], completion["top_logprobs"], strict=True):
            best_of_bytes: dict[bytes, float] = {}
            for other in entry["top_logprobs"]:
                best_of_bytes.setdefault(bytes(other["bytes"]), other["logprob"])
            assert list(top.values()) == list(best_of_bytes.values())
            assert top[name] == entry["logprob"], "greedy: the sampled token is the most likely one"
        streamed = [event["choices"][0]["logprobs"] for event in await server.streamed(**body)]
        assert [value for chunk in streamed if chunk for value in chunk["token_logprobs"]] == completion[
            "token_logprobs"
        ]


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 0.0},
        {"temperature": 0.7, "top_k": 5, "seed": 1},
        {"temperature": 1.5, "top_p": 0.5, "min_p": 0.1, "seed": 2},
        {"temperature": 1.0, "repetition_penalty": 1.5, "presence_penalty": 1.0, "frequency_penalty": 1.0, "seed": 3},
        {"temperature": 1.0, "logit_bias": {7: 5.0, 8: -5.0}, "seed": 4},
    ],
    ids=str,
)
def test_values_are_the_log_softmax_of_the_raw_logits_for_any_sampling(params: dict[str, Any]):
    built = build(tiny("Llama"))
    recorder, run = LogitRecorder(built), Run(built)
    run.add(request(built, "r", PROMPT, max_tokens=NUM_NEW, logprobs=4, **params))
    run.finish()
    entries = [entry for event in run.of("r")[:-1] for entry in event.logprobs]
    for position, entry in enumerate(entries, start=len(PROMPT) - 1):
        expected_V = torch.log_softmax(recorder.logits[PROMPT][position].double(), dim=0)
        found = torch.tensor([entry.logprob, *entry.top_logprobs], dtype=torch.float64)
        torch.testing.assert_close(found, expected_V[[entry.token_id, *entry.top_token_ids]], rtol=0, atol=1e-5)
        assert entry.rank == 1 + int((expected_V > expected_V[entry.token_id]).sum())
