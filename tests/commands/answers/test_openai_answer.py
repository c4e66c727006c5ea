"""Answers of other servers: what they leave out, add and spell otherwise."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from app.client.opening import ServerRefused
from app.commands.answers.remote import sse_answer
from app.commands.answers.streamed_text import AnswerEnd, read_stream
from app.config.base_url import read_base_url
from tests.commands.answers.foreign_server import JSON, ForeignServer, Said, foreign_server
from tests.commands.dialog.scripted_model import ended

MESSAGES = [{"role": "user", "content": "Hi"}]
CUT = "the connection to the server was lost before the end of the answer"


@pytest.fixture
def server() -> Iterator[ForeignServer]:
    with foreign_server() as running:
        yield running


def answer_of(server: ForeignServer) -> tuple[str, AnswerEnd]:
    """The text of the server's answer, and its end."""
    pieces: list[str] = []
    end = read_stream(sse_answer(read_base_url(server.url, "--url"), None, MESSAGES, {}), pieces.append)
    return "".join(pieces), end


def chunk(reason: str | None = None, /, **delta: object) -> dict[str, object]:
    """A chunk with one choice."""
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}


HELLO, END = chunk(content="Hello"), chunk("stop")


@pytest.mark.parametrize(
    "events",
    [
        pytest.param([": OPENROUTER PROCESSING\n\n", ": \n", HELLO, END], id="comments"),
        pytest.param(["event: message\nid: 1\nretry: 5\n", HELLO, END], id="other fields of events"),
        pytest.param(["data:\n\n", HELLO, END], id="an event without data"),
        pytest.param([chunk(role="assistant", content=None), HELLO, chunk("stop", content=None)], id="content null"),
        pytest.param([chunk(content=None, reasoning_content="hm"), HELLO, END], id="reasoning_content"),
        pytest.param([chunk(reasoning="hm"), HELLO, END], id="reasoning"),
        pytest.param([HELLO, {"choices": [{"index": 0, "delta": None, "finish_reason": "stop"}]}], id="delta null"),
        pytest.param([HELLO, {"choices": [{"index": 0, "finish_reason": "stop"}]}], id="no delta"),
        pytest.param([{"choices": [], "prompt_filter_results": []}, HELLO, END], id="no choice"),
        pytest.param([{"choices": None}, HELLO, END, {"type": "ping"}], id="choices null, and none at all"),
        pytest.param([HELLO | {"usage": None, "error": None}, END | {"usage": None}], id="usage and error null"),
        pytest.param([HELLO, END, {"choices": [], "usage": {"prompt_tokens": None}}], id="no counts in usage"),
        pytest.param(
            [chunk(content=[{"type": "thinking", "thinking": []}, {"type": "text", "text": "Hello"}]), END],
            id="a list of parts",
        ),
    ],
)
@pytest.mark.parametrize("done", [True, False], ids=["done", "without [DONE]"])
def test_what_other_servers_leave_out_or_add_changes_no_answer(server: ForeignServer, events, done: bool) -> None:
    server.stream(*events, done=done)
    assert answer_of(server) == ("Hello", ended("stop"))


def test_counts_are_those_of_the_server(server: ForeignServer) -> None:
    server.stream(HELLO, chunk("length"), {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 1}})
    assert answer_of(server) == ("Hello", ended("length", None, 3, 1))


def test_an_answer_that_names_no_reason_ends_with_done(server: ForeignServer) -> None:
    server.stream({"choices": [{"delta": {"content": "Hello"}}]})
    assert answer_of(server)[0] == "Hello"


def test_an_answer_that_is_not_streamed_is_one_piece(server: ForeignServer) -> None:
    choice = {"message": {"role": "assistant", "content": "Hello"}, "finish_reason": "stop"}
    server.answer = Said(json.dumps({"choices": [choice]}), 200, JSON)
    assert answer_of(server) == ("Hello", ended("stop"))


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (Said(f"data: {json.dumps(HELLO)}\n\n"), CUT),
        (Said(f"data: {json.dumps(HELLO)}\n\n", is_cut=True), CUT),
        (Said('data: {"error": {"message": "It broke.", "code": 500}}\n\n'), "It broke."),
        (Said('{"error": "no room"}', 200, JSON), "no room"),
        (Said("data: [1]\n\n"), "not that of an OpenAI-compatible API"),
        (Said("data: 1\n\n"), "not that of an OpenAI-compatible API"),
        (Said("data: {\n\n"), "not that of an OpenAI-compatible API"),
        (Said(f"data: {'[' * 100_000}\n\n"), "not that of an OpenAI-compatible API"),
        (Said('data: {"choices": [1]}\n\n'), "not that of an OpenAI-compatible API"),
        (Said('data: {"choices": [{"delta": {"content": [{}]}}]}\n\n'), "not that of an OpenAI-compatible API"),
        (Said('data: {"choices": [{"delta": {"content": 7}}]}\n\n'), "not that of an OpenAI-compatible API"),
        (Said("<html>", 200, JSON), "not that of an OpenAI-compatible API"),
    ],
)
def test_an_answer_that_breaks_off_or_is_none_is_one_sentence(server: ForeignServer, said: Said, words: str) -> None:
    server.answer = said
    with pytest.raises(ServerRefused) as caught:
        answer_of(server)
    assert words in caught.value.message


def test_an_error_of_the_server_has_its_status_and_a_redirect_its_address(server: ForeignServer) -> None:
    server.answer = Said('{"detail": "Not Found"}', 404, JSON)
    with pytest.raises(ServerRefused, match="status 404: Not Found"):
        answer_of(server)
    server.answer = Said("", 308, headers=(("location", "https://example.org/v1/chat/completions"),))
    with pytest.raises(ServerRefused, match=r"sends to https://example\.org/v1/chat/completions; give that address"):
        answer_of(server)
