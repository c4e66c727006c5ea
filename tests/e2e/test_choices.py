"""Several choices of one request to `quire serve`: every transport returns the choices of `LLM`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import torch

from app.client.client import connect
from app.contract.sampling_params import SamplingParams
from app.llm import LLM
from app.llm_outputs import RequestOutput
from tests.checkpoints import tiny
from tests.server.processes import HANG_S, RunningServer
from tests.server.quick_start import serving

MESSAGES = [{"role": "user", "content": "the quick brown fox jumps over the lazy dog, and back"}]
PROMPT = "blocks, slots, rows and steps of the quick brown fox, " * 3
SAMPLED = {"temperature": 1.5, "seed": 7, "max_tokens": 24}
CASES = {
    "several": {"n": 4, **SAMPLED},
    "best of several": {"n": 2, "best_of": 6, **SAMPLED},
    "beams": {"n": 3, "use_beam_search": True, "beam_width": 4, "length_penalty": 0.6, "max_tokens": 24},
}
KEYS = ("one", "two")
SETTINGS: dict[str, int] = {"num_kv_blocks": 96}

Choices = list[tuple[str, str | None]]
"""Text and finish reason of each choice, in their order."""


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    """A server with a tiny model and two keys."""
    options = [text for name, value in SETTINGS.items() for text in (f"--{name.replace('_', '-')}", str(value))]
    keys = [text for key in KEYS for text in ("--api-key", key)]
    with serving(str(tiny("Llama")), *options, *keys) as running:
        running.wait_until_ready()
        yield running


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    """The server's model, in this process."""
    torch.set_num_threads(1)
    made = LLM(str(tiny("Llama")), **SETTINGS)
    yield made
    made.close()


def http(server: RunningServer, key: str = KEYS[0]) -> httpx.AsyncClient:
    """A client with one of the keys."""
    return httpx.AsyncClient(base_url=server.url, timeout=HANG_S, headers={"x-api-key": key})


def choices_of(output: RequestOutput) -> Choices:
    """The choices of an output of `LLM`."""
    return [(one.text, one.finish_reason) for one in output.outputs]


async def complete(client: httpx.AsyncClient, body: dict[str, Any]) -> tuple[Choices, dict[str, Any]]:
    """Request one JSON body."""
    answer = (await client.post("/v1/chat/completions", json=body)).json()
    assert [choice["index"] for choice in answer["choices"]] == list(range(body["n"]))
    choices = [(choice["message"]["content"], choice["finish_reason"]) for choice in answer["choices"]]
    return choices, answer["usage"]


async def streamed(client: httpx.AsyncClient, body: dict[str, Any]) -> tuple[Choices, dict[str, Any]]:
    """Request a stream over SSE."""
    texts, reasons, usage = [""] * body["n"], [None] * body["n"], {}
    stream_body = body | {"stream": True, "stream_options": {"include_usage": True}}
    async with client.stream("POST", "/v1/chat/completions", json=stream_body) as response:
        lines = [line.removeprefix("data: ") async for line in response.aiter_lines() if line.startswith("data: ")]
    for line in lines[:-1]:
        chunk = json.loads(line)
        usage = chunk["usage"] or usage
        for choice in chunk["choices"]:
            assert reasons[choice["index"]] is None, "nothing follows the end of a choice"
            texts[choice["index"]] += choice["delta"].get("content", "")
            reasons[choice["index"]] = choice["finish_reason"]
    return list(zip(texts, reasons, strict=True)), usage


async def over_websocket(server: RunningServer, body: dict[str, Any]) -> tuple[Choices, dict[str, Any]]:
    """Request a stream over quire.v1."""
    options = {name: value for name, value in body.items() if name != "messages"}
    async with connect(server.url, KEYS[0]) as client:
        stream = await client.chat(body["messages"], **options)
        texts = await stream.texts()
    assert stream.usage is not None
    return [(text, stream.ends[choice].reason) for choice, text in enumerate(texts)], stream.usage


@pytest.mark.parametrize("case", CASES)
async def test_every_transport_returns_the_choices_of_the_offline_engine(
    server: RunningServer, llm: LLM, case: str
) -> None:
    """The requests run concurrently, in the same batches."""
    body = {"messages": MESSAGES, **CASES[case]}
    (expected,) = llm.chat(MESSAGES, SamplingParams(**CASES[case]), use_tqdm=False)
    async with http(server) as client, asyncio.timeout(HANG_S):
        found = await asyncio.gather(complete(client, body), streamed(client, body), over_websocket(server, body))
    assert len({text for text, _ in choices_of(expected)}) == body["n"], "the choices are the same text"
    for answer, usage in found:
        assert answer == choices_of(expected)
        assert usage["prompt_tokens"] == len(expected.prompt_token_ids)
        assert usage["completion_tokens"] == expected.usage.completion_tokens


async def test_cached_prompts_are_counted_and_shared_only_within_a_key_and_salt(server: RunningServer) -> None:
    async def ask(key: str, **fields: Any) -> tuple[list[str], int]:
        async with http(server, key) as client:
            answer = (await client.post("/v1/completions", json={"prompt": PROMPT, **SAMPLED, "n": 2} | fields)).json()
        cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        return [choice["text"] for choice in answer["choices"]], cached

    cold, warm = await ask("one"), await ask("one")
    assert cold[0] == warm[0]
    assert cold[1] == 0 < warm[1]
    assert warm[1] % 16 == 0
    for key, fields in (("one", {"cache_salt": "mine"}), ("two", {}), ("two", {"cache_salt": "mine"})):
        assert await ask(key, **fields) == (cold[0], 0)
        assert await ask(key, **fields) == warm


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_past_its_deadline_gets_a_504_and_the_next_one_is_served(
    server: RunningServer, stream: bool
) -> None:
    body = {"prompt": PROMPT, "n": 2, "max_tokens": 200, "stream": stream}
    async with http(server) as client:
        for fields, code in (({"queue_timeout": 1e-9}, "queue_timeout"), ({"timeout": 1e-6}, "deadline_exceeded")):
            answer = await client.post("/v1/completions", json=body | fields)
            assert (answer.status_code, answer.json()["error"]["code"]) == (504, code)
        assert (await client.post("/v1/completions", json=body | {"timeout": HANG_S})).status_code == 200
