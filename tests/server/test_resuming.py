"""Answers of a real model, read over connections that break: every token once, bytes equal to an undisturbed stream."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.server import resumed_sockets
from tests.server.processes import HANG_S
from tests.server.quick_start import serving
from tests.server.resumed_reading import check_every_number
from tests.server.thinking_checkpoint import write_thinking_checkpoint

SCHEMA = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 12}}, "required": ["city"]}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "It tells.",
            "parameters": SCHEMA | {"additionalProperties": False},
        },
    }
]
THINKING = {"thinking_token_budget": 6, "seed": 3, "temperature": 1}
CASES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "seeded": {"temperature": 2, "seed": 7},
    "seeded, two choices": {"temperature": 2, "seed": 7, "n": 2},
    "stop strings": {"temperature": 0, "stop": ["web", "contin"], "max_tokens": 60},
    "characters of several tokens": {"seed": 3, "regex": "(猫|é|\U0001f642){8}"},
    "log-probabilities": {"temperature": 0, "logprobs": True, "top_logprobs": 3},
    "a schema": {"seed": 5, "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}},
    "reasoning": {**THINKING, "max_tokens": 20},
    "reasoning and calls, two choices": {
        **THINKING, "tools": TOOLS, "tool_choice": "required", "n": 2, "max_tokens": 70
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A client of a server with a model that reasons, if it is asked to, and calls tools."""
    folder = write_thinking_checkpoint(tmp_path_factory.mktemp("resuming") / "thinking")
    with serving(str(folder)) as server:
        server.wait_until_ready()
        with httpx.Client(base_url=server.url, timeout=HANG_S) as client:
            yield client


@pytest.mark.parametrize("name", CASES)
def test_every_token_comes_once_where_a_connection_breaks_and_at_each_number(client: httpx.Client, name: str):
    thinks = "thinking_token_budget" in CASES[name]
    whole = check_every_number(client, {**CASES[name], "chat_template_kwargs": {"enable_thinking": thinks}})
    deltas = [choice["delta"] for choice in whole["choices"].values()]
    assert all(bool(delta.get("reasoning_content")) == thinks for delta in deltas)
    assert all(("tool_calls" in delta) == ("tools" in CASES[name]) for delta in deltas)


@pytest.mark.parametrize("name", CASES)
def test_every_token_comes_once_where_a_socket_breaks_and_at_each_number(client: httpx.Client, name: str):
    thinks = "thinking_token_budget" in CASES[name]
    resumed_sockets.check_every_number(client, {**CASES[name], "chat_template_kwargs": {"enable_thinking": thinks}})
