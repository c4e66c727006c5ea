"""A real, small model whose process for masks ends a hundred times in a company of 32: one answer fails each time."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from app.checkpoint.hub import smollm2
from benchmarks.api_client import ApiClient
from benchmarks.isolation.memory import tree
from benchmarks.server_process import ServerProcess, local_target, serving

pytestmark = [pytest.mark.real, pytest.mark.timeout(3600)]
NUM_DEATHS, NUM_GOOD = 100, 31
CHAT = "/v1/chat/completions"
CITY = {
    "type": "object", "properties": {"city": {"type": "string", "maxLength": 30}, "size": {"type": "integer"}},
    "required": ["city", "size"],
}  # fmt: skip
WANTED: list[dict[str, Any]] = [
    {"response_format": {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY}}},
    {"regex": "[a-f]{3,12}-[0-9]+"},
    {"guided_choice": ["yes", "no", "maybe, but not today"]},
    {"grammar": 'root ::= word (" " word){3,9} "."\nword ::= [a-z]{2,8}'},
]


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    """A server with the model, and room for all."""
    if not smollm2.local_file().exists():
        pytest.skip("there is no real model; run `make real-model`")
    with serving("smollm2", "--max-model-len", "1024", "--max-num-seqs", "40") as server:
        yield server


def client(server: ServerProcess, source: str) -> ApiClient:
    return ApiClient(local_target(server.port, source=source), 120.0)


def asked(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "Which city do you like?"}], "max_tokens": 24, **fields}


async def good_answers(server: ServerProcess) -> list[bytes]:
    """What 31 requests of seven accounts are answered at the same time."""
    bodies = [asked(seed=number, temperature=1, **WANTED[number % 4]) for number in range(NUM_GOOD)]
    answers = [client(server, f"127.0.1.{1 + number % 7}").post(CHAT, body) for number, body in enumerate(bodies)]
    found = await asyncio.gather(*answers)
    assert {each.status for each in found} == {200}, [each.content for each in found if each.status != 200]
    return [orjson.dumps(orjson.loads(each.content)["choices"]) for each in found]


async def bad_answer(server: ServerProcess, number: int, letter_id: int) -> tuple[int, bytes]:
    """What a request is answered whose mask behind forty letters takes seconds."""
    patterns = [{"pattern": f"^(z*q|z{{6}}(.*)k{number}x{each}(.*))$"} for each in range(21)]
    schema = {"type": "string", "allOf": patterns}
    form = {"type": "json_schema", "json_schema": {"name": "bad", "schema": schema}}
    body = asked(response_format=form, temperature=0, logit_bias={str(letter_id): 100})
    answer = await client(server, f"127.0.2.{1 + number}").post(CHAT, body)
    return answer.status, answer.content


def held(server: ServerProcess) -> tuple[int, int]:
    """The descriptors of the server, and the processes."""
    return len(list(Path(f"/proc/{server.pid}/fd").iterdir())), len(list(tree(server.pid)))


async def num_processes(server: ServerProcess) -> float:
    page = (await server.client().get("/metrics")).content.decode()
    (line,) = [line for line in page.splitlines() if line.startswith("quire_grammar_processes")]
    return float(line.split()[-1])


async def until_held(server: ServerProcess, wanted: tuple[int, int]) -> None:
    """Wait until no more is held than at first: what has ended may not have been noted yet."""
    async with asyncio.timeout(20):
        while held(server) > wanted:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_a_hundred_ends_cost_one_answer_each(server: ServerProcess):
    tokens = await server.client().post("/tokenize", {"content": "zz"})
    letter_id = orjson.loads(tokens.content)["tokens"][-1]
    alone = await good_answers(server)
    assert await good_answers(server) == alone
    before, shared, num_before = held(server), set(os.listdir("/dev/shm")), await num_processes(server)
    for number in range(NUM_DEATHS):
        answers, (status, content) = await asyncio.gather(good_answers(server), bad_answer(server, number, letter_id))
        assert answers == alone
        assert status == 400 and b"0.1 s of processor time" in content, content
        await until_held(server, before)
    assert await num_processes(server) >= num_before + NUM_DEATHS
    assert set(os.listdir("/dev/shm")) == shared
