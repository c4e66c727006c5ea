"""Answers of a server elsewhere that are longer than the window, and a server that stops meanwhile."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from app.commands.remote import sse_answer, websocket_answer
from app.contract.errors import QuireError
from tests.server.processes import HANG_S, RunningServer, serving

MESSAGES = [{"role": "user", "content": "What is Quire?"}]
NUM_TOKENS = 650
FIELDS: dict[str, Any] = {"temperature": 0, "max_tokens": NUM_TOKENS, "ignore_eos": True}


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    """A server with the embedded model."""
    with serving() as running:
        running.wait_until_ready()
        yield running


@pytest.fixture(scope="module")
def expected(server: RunningServer) -> str:
    """The whole answer by a request that is not streamed."""
    return whole_answer(server, FIELDS)


def whole_answer(server: RunningServer, fields: dict[str, Any]) -> str:
    """Ask for one JSON body, which must be as long as it may."""
    body = {"messages": MESSAGES, **fields}
    answer = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=HANG_S).json()
    assert answer["usage"]["completion_tokens"] == NUM_TOKENS
    return str(answer["choices"][0]["message"]["content"])


def until_draining(server: RunningServer) -> None:
    """Return when /readyz says that the server stops."""
    deadline = time.monotonic() + HANG_S
    while httpx.get(f"{server.url}/readyz").json()["status"] != "draining":
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_an_answer_of_several_windows_is_whole_over_both_ways(server: RunningServer, expected: str) -> None:
    assert "".join(sse_answer(server.url, None, MESSAGES, FIELDS)) == expected
    with asyncio.Runner() as runner:
        assert "".join(websocket_answer(runner, server.url, None, MESSAGES, FIELDS)) == expected


def test_chat_prints_all_of_an_answer_of_several_windows(server: RunningServer) -> None:
    """The token that ends an answer stands in the prompt, so the penalty keeps it away."""
    endless = {"temperature": 0, "repetition_penalty": 3, "max_tokens": NUM_TOKENS}
    answer = whole_answer(server, endless)
    options = [text for name, value in endless.items() for text in (f"--{name.replace('_', '-')}", str(value))]
    result = subprocess.run(
        [sys.executable, "-m", "app", "chat", "--url", server.url, "--ws", *options],
        input=MESSAGES[0]["content"] + "\n",
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == answer + "\n"


def test_a_server_that_stops_finishes_the_answer_and_is_told_of_at_its_end(expected: str) -> None:
    notes: list[str] = []
    with serving() as running, asyncio.Runner() as runner:
        running.wait_until_ready()
        pieces = websocket_answer(runner, running.url, None, MESSAGES, FIELDS, notes.append)
        answer = next(pieces)
        running.process.send_signal(signal.SIGTERM)
        until_draining(running)
        assert answer + "".join(pieces) == expected
        assert notes == ["the server is shutting down and accepts no new questions"]
        with pytest.raises(QuireError):
            list(websocket_answer(runner, running.url, None, MESSAGES, FIELDS))
        assert running.end() == 0
