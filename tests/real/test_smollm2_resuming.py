"""A real, small model calls tools, and its answer is read over connections that break."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from app.checkpoint.hub import smollm2
from tests.server.processes import HANG_S, serving
from tests.server.resumed_reading import check_every_number

pytestmark = pytest.mark.real
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tells the weather in a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
QUESTION = [{"role": "user", "content": "How is the weather in Oslo?"}]


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    """A client of a server with the model."""
    if not smollm2.local_file().exists():
        pytest.skip("there is no real model; run `make real-model`")
    with serving("smollm2", "--max-model-len", "1024") as server:
        server.wait_until_ready()
        with httpx.Client(base_url=server.url, timeout=HANG_S) as client:
            yield client


@pytest.mark.parametrize("choice", ["auto", "required"])
@pytest.mark.parametrize("n", [1, 2])
def test_calls_go_on_at_every_number(client: httpx.Client, choice: str, n: int):
    tools = {"tools": [TOOL], "tool_choice": choice, "parallel_tool_calls": False}
    whole = check_every_number(client, {"messages": QUESTION, "seed": 5, "n": n, "max_tokens": 60, **tools})
    calls = [choice["delta"].get("tool_calls", {}) for choice in whole["choices"].values()]
    assert len(calls) == n
    assert choice == "auto" or all(len(each) == 1 and each[0]["function"]["name"] == "weather" for each in calls)
