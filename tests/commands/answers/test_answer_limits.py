"""How answers end in the terminal: limits of their own, the reason in words, and more of an answer."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from app.commands.answers.answer_limits import CHAT_LIMITS
from app.commands.answers.local import LocalModel
from app.commands.answers.remote import sse_answer, websocket_answer
from app.commands.answers.streamed_text import Messages, TextStream
from app.commands.dialog.screens import RawScreen
from app.commands.dialog.shown_answer import ShownAnswer
from app.config.base_url import read_base_url
from app.config.settings import make_config
from app.contract.sampling_params import SamplingParams
from tests.checkpoints import tiny
from tests.server.processes import RunningServer
from tests.server.quick_start import serving
from tests.text.templates import GRANITE

QUESTION = [{"role": "user", "content": "the quick brown fox"}]
TOKEN = 60
ENDLESS: dict[str, Any] = {"temperature": 0, "logit_bias": {str(TOKEN): 100.0}}
MAX_MODEL_LEN = 1200
Answer = Callable[[Messages, dict[str, Any]], TextStream]


@pytest.fixture(scope="module")
def model() -> Path:
    """A tiny model that has room for a quarter of more than 256 tokens."""
    return tiny("Llama", max_position_embeddings=MAX_MODEL_LEN)


@pytest.fixture(scope="module")
def server(model: Path) -> Iterator[RunningServer]:
    with serving(str(model), "--num-kv-blocks", "128") as running:
        running.wait_until_ready()
        yield running


@pytest.fixture(params=["local", "sse", "websocket"])
def answer(request: pytest.FixtureRequest, model: Path, server: RunningServer) -> Iterator[Answer]:
    """Answers as the terminal gets them: from a model in this process, and from a server in both ways."""
    url = read_base_url(server.url, "--url")
    with asyncio.Runner() as runner:
        if request.param == "sse":
            yield lambda messages, fields: sse_answer(url, None, messages, CHAT_LIMITS | fields)
        elif request.param == "websocket":
            yield lambda messages, fields: websocket_answer(runner, url, None, messages, CHAT_LIMITS | fields)
        else:
            local = LocalModel(make_config({"model": str(model), "num_kv_blocks": 128}), runner)
            yield lambda messages, fields: local.chat(messages, params_of(fields))
            local.close()


def params_of(fields: dict[str, Any]) -> SamplingParams:
    """The parameters of a local chat with these fields."""
    bias = {int(token_id): value for token_id, value in fields["logit_bias"].items()}
    return SamplingParams(**{"max_tokens": None, "repetition_stop": True, **fields, "logit_bias": bias})


@pytest.mark.parametrize(
    ("fields", "num_tokens", "words"),
    [
        ({}, 256, "the answer repeated itself and was ended"),
        ({"repetition_stop": False}, MAX_MODEL_LEN // 4, "the answer has reached its limit of tokens"),
        ({"repetition_stop": False, "max_tokens": 400}, 400, "the answer has reached its limit of tokens"),
        ({"stop_token_ids": [TOKEN]}, 0, "the model ended without a text"),
    ],
)
def test_an_answer_ends_within_a_quarter_of_the_context_and_says_why(answer, fields, num_tokens, words):
    shown, one = ShownAnswer(RawScreen(io.StringIO())), answer(QUESTION, ENDLESS | {"max_tokens": 1})
    shown.read(answer(QUESTION, ENDLESS | fields))
    assert shown.text == "".join(one) * num_tokens
    assert shown.end_words() == words


def test_a_conversation_that_ends_with_an_answer_gets_more_of_it(answer):
    """The answer is part of the prompt, so that what follows is not how an answer begins."""
    said = "one two three "
    greedy = {"temperature": 0, "logit_bias": {}, "max_tokens": 12}
    more = "".join(answer([*QUESTION, {"role": "assistant", "content": said}], greedy))
    again = "".join(answer([*QUESTION, {"role": "assistant", "content": said + more}], greedy))
    first = "".join(answer(QUESTION, greedy))
    assert more and more not in (first, again)


@pytest.fixture
def reasoning(tmp_path: Path) -> str:
    """A file with a template whose prompts end within the model's reasoning."""
    (tmp_path / "reasoning.jinja").write_text(GRANITE.replace("'assistant: '", "'assistant: <think>\\n'"))
    return str(tmp_path / "reasoning.jinja")


def test_a_model_that_thinks_up_to_its_limit_has_no_answer_here_and_on_a_server(reasoning: str) -> None:
    """Thoughts are no text, so there is nothing to continue; what the model says behind them is."""
    with asyncio.Runner() as runner, serving("--chat-template", reasoning, "--num-kv-blocks", "128") as running:
        running.wait_until_ready()
        local = LocalModel(make_config({"chat_template": reasoning, "num_kv_blocks": 128}), runner)
        url, limits = read_base_url(running.url, "--url"), {"temperature": 0, "max_tokens": 8, "ignore_eos": True}
        said = {"role": "assistant", "content": "<think> Hm. </think> Well"}
        for asked in (
            lambda messages: local.chat(messages, SamplingParams(**limits)),
            lambda messages: sse_answer(url, None, messages, limits),
        ):
            answer, more = ShownAnswer(RawScreen(io.StringIO())), asked([*QUESTION, said])
            answer.read(asked(QUESTION))
            assert answer.text == "" and (answer.end_words() or "").startswith("the limit of tokens was reached before")
            assert "".join(more)
        local.close()
