"""Answers of a remote server that are longer than the credit window, and a server that shuts down."""

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

from app.client.protocol import WINDOW
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
    """The complete answer of a request that is not streamed."""
    return complete_answer(server, FIELDS)


def complete_answer(server: RunningServer, fields: dict[str, Any]) -> str:
    """Request one JSON body; asserts that the answer has more tokens than two windows."""
    body = {"messages": MESSAGES, **fields}
    answer = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=HANG_S).json()
    assert answer["usage"]["completion_tokens"] > 2 * WINDOW
    return str(answer["choices"][0]["message"]["content"])


def until_draining(server: RunningServer) -> None:
    """Wait until /readyz reports that the server drains."""
    deadline = time.monotonic() + HANG_S
    while httpx.get(f"{server.url}/readyz", timeout=HANG_S).json()["status"] != "draining":
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_an_answer_of_several_windows_is_complete_over_sse_and_websocket(server: RunningServer, expected: str) -> None:
    assert "".join(sse_answer(server.url, None, MESSAGES, FIELDS)) == expected
    with asyncio.Runner() as runner:
        assert "".join(websocket_answer(runner, server.url, None, MESSAGES, FIELDS)) == expected


def test_chat_prints_a_complete_answer_of_several_windows(server: RunningServer) -> None:
    """The end token is in the prompt, so that the penalty prevents it."""
    endless = {"temperature": 0, "repetition_penalty": 3, "max_tokens": NUM_TOKENS}
    answer = complete_answer(server, endless)
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


def test_a_draining_server_finishes_the_answer_and_a_note_is_shown(expected: str) -> None:
    notes: list[str] = []
    with serving("--drain-timeout", str(HANG_S)) as running, asyncio.Runner() as runner:
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
