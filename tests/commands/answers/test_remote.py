"""Answers of a remote server that are longer than the credit window, and a server that shuts down."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import httpx
import pytest

from app.client.protocol import WINDOW
from app.commands.answers.answer_limits import CHAT_LIMITS
from app.commands.answers.remote import Listing, RemoteModels, listed_models, sse_answer, websocket_answer
from app.commands.answers.streamed_text import read_stream
from app.config.base_url import BaseUrl, read_base_url
from app.contract.errors import ConfigurationError, QuireError
from tests.commands.answers.foreign_server import JSON, ForeignServer, Said, foreign_server
from tests.server.processes import HANG_S, RunningServer
from tests.server.quick_start import serving

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


def base(url: str) -> BaseUrl:
    """The parts of a URL."""
    return read_base_url(url, "--url")


def complete_answer(server: RunningServer, fields: dict[str, Any]) -> str:
    """Request one JSON body; asserts that the answer has more tokens than two windows."""
    body = {"messages": MESSAGES, **fields}
    answer = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=HANG_S).json()
    assert answer["usage"]["completion_tokens"] > 2 * WINDOW
    return str(answer["choices"][0]["message"]["content"])


def remote(
    server: RunningServer, name: str | None = None, *, runner: asyncio.Runner | None = None, **fields: Any
) -> RemoteModels:
    """The models of a server, over the WebSocket if there is a runner."""
    url = base(server.url)
    answer = partial(websocket_answer, runner, url, None) if runner else partial(sse_answer, url, None)
    return RemoteModels(url, None, answer, {"temperature": 0, **fields}, name)


@pytest.mark.parametrize("is_ws", [False, True])
def test_an_answer_ends_with_its_reason_and_counts_and_can_be_continued(server: RunningServer, is_ws: bool) -> None:
    with asyncio.Runner() as loop:
        runner = loop if is_ws else None
        whole, cut = (remote(server, runner=runner, max_tokens=count) for count in (12, 6))
        expected, pieces = "".join(whole.answer(MESSAGES)), list[str]()
        end = read_stream(cut.answer(MESSAGES), pieces.append)
        assert (end.choice, end.completion_tokens) == (("length", None), 6) and end.prompt_tokens
        begin = "".join(pieces)
        rest = "".join(cut.answer([*MESSAGES, {"role": "assistant", "content": begin}]))
        assert begin and rest and begin + rest == expected


def test_the_models_of_a_server_are_listed_and_chosen_by_name(server: RunningServer) -> None:
    models = remote(server)
    assert (models.model.name, models.model.context) == ("guide", 2048)
    assert [model.name for model in models.models()] == ["guide"]
    models.use("guide")
    with pytest.raises(ConfigurationError, match="no model 'giude'; did you mean 'guide'; it lists guide"):
        models.use("giude")
    assert models.model.name == "guide"
    with pytest.raises(ConfigurationError, match="no model 'other'"):
        remote(server, "other")


@pytest.fixture
def foreign() -> Iterator[ForeignServer]:
    """Another server, that lists no models."""
    with foreign_server() as running:
        running.stream({"choices": [{"index": 0, "delta": {"content": "Hello"}, "finish_reason": "stop"}]})
        yield running


def sent(foreign: ForeignServer, name: str | None = None, **fields: object) -> dict[str, Any]:
    """The body that asks a server for an answer, without what all have."""
    answer = partial(sse_answer, base(foreign.url), None)
    models = RemoteModels(base(foreign.url), None, answer, {"top_p": 0.5, **fields}, name)
    assert "".join(models.answer(MESSAGES)) == "Hello"
    return {key: value for key, value in foreign.bodies[-1].items() if "stream" not in key and key != "messages"}


def test_a_chosen_model_is_sent_also_where_the_server_lists_none(foreign: ForeignServer) -> None:
    assert sent(foreign, "mine") == {"model": "mine", "top_p": 0.5}
    assert sent(foreign) == {"top_p": 0.5}


def test_fields_of_quire_are_sent_to_quire_alone(foreign: ForeignServer) -> None:
    """OpenAI and Mistral reject requests with fields that they do not know."""
    foreign.list({"id": "gpt", "owned_by": "openai"})
    assert sent(foreign) == {"model": "gpt", "top_p": 0.5}
    assert sent(foreign, repetition_stop=False) == {"model": "gpt", "top_p": 0.5}
    foreign.list({"id": "guide", "owned_by": "quire", "max_model_len": 2048})
    assert sent(foreign) == {"model": "guide", "top_p": 0.5, **CHAT_LIMITS}


@pytest.mark.parametrize("body", ["", '{"data": []}', '{"data": null}', '{"error": {"message": "Loading model"}}'])
def test_a_server_that_has_loaded_its_model_meanwhile_is_asked_for_it_again(foreign: ForeignServer, body: str) -> None:
    foreign.listing = Said(body, 200 if "data" in body else 503)
    models = RemoteModels(base(foreign.url), None, partial(sse_answer, base(foreign.url), None), {}, None)
    assert models.model.name == "the server's model"
    foreign.list({"id": "late", "max_model_len": 9})
    assert "".join(models.answer(MESSAGES)) == "Hello"
    assert foreign.bodies[-1]["model"] == "late" and models.model == ("late", 9)
    assert "".join(models.answer(MESSAGES)) == "Hello" and foreign.num_listed == 2


@pytest.mark.parametrize("status", [404, 405, 501])
def test_an_address_without_an_api_is_told_before_the_first_question(foreign: ForeignServer, status: int) -> None:
    foreign.answer = Said("", status, "text/html")
    with pytest.raises(ConfigurationError, match=r"has no OpenAI-compatible API: .*; give the address"):
        RemoteModels(base(f"{foreign.url}/wrong"), None, partial(sse_answer, base(foreign.url), None), {}, None)


def test_a_server_that_only_misses_a_model_has_an_api(foreign: ForeignServer) -> None:
    foreign.answer = Said('{"error": {"message": "there is no model"}}', 404, JSON)
    RemoteModels(base(foreign.url), None, partial(sse_answer, base(foreign.url), None), {}, None)


@pytest.mark.parametrize("said", [Said("", 404, "text/html"), Said("", 405), Said("<html>", 200, "text/html")])
def test_a_server_without_a_list_of_models_is_asked_for_it_once(foreign: ForeignServer, said: Said) -> None:
    foreign.listing = said
    models = RemoteModels(base(foreign.url), None, partial(sse_answer, base(foreign.url), None), {}, None)
    for _ in range(3):
        assert "".join(models.answer(MESSAGES)) == "Hello"
    assert foreign.num_listed == 1 and "model" not in foreign.bodies[-1]
    foreign.list({"id": "late"})
    assert [model.name for model in models.models()] == ["late"]  # the user has asked


@pytest.mark.parametrize(
    ("data", "names"),
    [
        (None, []),
        ([{"id": "a", "meta": {"n_ctx_train": 8}}, {"object": "model"}, {"id": None}, "b", {"id": "c"}], ["a", "c"]),
        ({"id": "a"}, []),
        ("no", []),
    ],
)
def test_of_lists_of_other_servers_the_names_are_read(foreign: ForeignServer, data: object, names: list[str]) -> None:
    foreign.listing = Said(json.dumps({"object": "list", "data": data}), 200, "application/json")
    assert [model.name for model in listed_models(base(foreign.url), None).models] == names


@pytest.mark.parametrize("body", ["<html>", "[]", "7", "[" * 100_000])
def test_what_is_no_list_of_models_is_none(foreign: ForeignServer, body: str) -> None:
    foreign.listing = Said(body, 200, "text/html")
    assert listed_models(base(foreign.url), None) == Listing(can_list=False)


def test_a_wrong_key_is_told_before_the_first_question() -> None:
    advice = "give its own with --api-key KEY, or set QUIRE_API_KEY"
    with serving("--api-key", "secret") as running:
        running.wait_until_ready()
        result = subprocess.run(
            [sys.executable, "-m", "app", "chat", "--url", f"{running.url}/v1/", "--api-key", "wrong"],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=HANG_S,
        )  # fmt: skip
        assert result.returncode == 2
        assert result.stderr == f"quire: error: {running.url} does not accept this API key; {advice}\n"
        with pytest.raises(ConfigurationError, match=f"needs an API key; {advice}"):
            listed_models(base(running.url), None)


def test_a_dead_server_is_told_before_the_first_question() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "app", "chat", "--url", "127.0.0.1:9/v1"],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=HANG_S,
    )  # fmt: skip
    assert result.returncode == 75
    assert result.stderr.startswith("quire: error: cannot reach http://127.0.0.1:9 (")


def until_draining(server: RunningServer) -> None:
    """Wait until /readyz reports that the server drains."""
    deadline = time.monotonic() + HANG_S
    while httpx.get(f"{server.url}/readyz", timeout=HANG_S).json()["status"] != "draining":
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_an_answer_of_several_windows_is_complete_over_sse_and_websocket(server: RunningServer, expected: str) -> None:
    assert "".join(sse_answer(base(server.url), None, MESSAGES, FIELDS)) == expected
    with asyncio.Runner() as runner:
        assert "".join(websocket_answer(runner, base(server.url), None, MESSAGES, FIELDS)) == expected


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
        pieces = websocket_answer(runner, base(running.url), None, MESSAGES, FIELDS, notes.append)
        answer = next(pieces)
        running.process.send_signal(signal.SIGTERM)
        until_draining(running)
        assert answer + "".join(pieces) == expected
        assert notes == ["the server is shutting down and accepts no new questions"]
        with pytest.raises(QuireError):
            list(websocket_answer(runner, base(running.url), None, MESSAGES, FIELDS))
        assert running.end() == 0
