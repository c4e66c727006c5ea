"""For a request that names no sampling the same defaults act everywhere: over the network, in Python, in a terminal.

The model's weights are random, so that at temperature 1 two answers differ; with a default of top-k 1 all are the same.
"""

import asyncio
import subprocess
import sys

import httpx
import pytest

from app.commands.answers.remote import websocket_answer
from app.contract.sampling_params import SamplingParams
from app.llm import LLM
from tests.gguf_writer import tiny_gguf
from tests.server.processes import HANG_S
from tests.server.quick_start import quire, serving

SETTINGS = {"default_top_k": 1, "default_max_tokens": 9}
OPTIONS = ("--default-top-k", "1", "--default-max-tokens", "9")
PROMPT = "the quick brown fox"
MESSAGES = [{"role": "user", "content": PROMPT}]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    """A GGUF file of nobody's, for which llama.cpp's defaults act."""
    return str(tiny_gguf(tmp_path_factory.mktemp("model") / "mine.gguf"))


@pytest.fixture(scope="module")
def llm(model):
    return LLM(model, **SETTINGS)


@pytest.fixture(scope="module")
def server(model):
    with serving("--model", model, *OPTIONS) as running:
        running.wait_until_ready()
        yield running


def test_the_defaults_are_named_with_their_sources(llm, server):
    defaults = llm.engine.model_info.defaults
    assert str(defaults) == (
        "top-k 1, max tokens 9 (a setting); temperature 0.8, top-p 0.95, min-p 0.05 (llama.cpp's default)"
    )
    (about,) = httpx.get(f"{server.url}/v1/models", timeout=HANG_S).json()["data"]
    assert about["default_sampling_params"] == defaults.values()
    assert about["default_sampling_sources"] == defaults.sources
    assert f"  sampling defaults: {defaults}\n" in iter(server.process.stdout.readline, "")
    chosen = llm.get_default_sampling_params()
    assert (chosen.temperature, chosen.top_p, chosen.top_k, chosen.min_p) == (0.8, 0.95, 1, 0.05)
    assert chosen.max_tokens == 9


def test_answers_to_a_chat_are_the_same_wherever_it_is_asked(llm, server, model):
    (output,) = llm.chat(MESSAGES, use_tqdm=False)[0].outputs
    assert 1 <= len(output.token_ids) <= 9
    answer = httpx.post(f"{server.url}/v1/chat/completions", json={"messages": MESSAGES}, timeout=HANG_S).json()
    assert answer["choices"][0]["message"]["content"] == output.text
    with asyncio.Runner() as runner:
        assert "".join(websocket_answer(runner, server.url, None, MESSAGES, {})) == output.text
    shown = f"{output.text}\n".replace("\r", "\n")  # as pipes are read
    assert quire("generate", PROMPT, "--model", model, *OPTIONS).stdout == shown
    for where in (("--url", server.url), ("--model", model, *OPTIONS)):
        chat = [sys.executable, "-m", "app", "chat", *where]
        result = subprocess.run(chat, input=PROMPT, capture_output=True, text=True, timeout=HANG_S)
        assert result.stdout == shown, where


def test_completions_are_the_same_wherever_they_are_asked_for(llm, server, model):
    (output,) = llm.generate(PROMPT, use_tqdm=False)[0].outputs
    assert len(output.token_ids) == 9, "and not 16"
    answer = httpx.post(f"{server.url}/v1/completions", json={"prompt": PROMPT}, timeout=HANG_S).json()
    assert answer["choices"][0]["text"] == output.text
    shown = f"{output.text}\n".replace("\r", "\n")
    assert quire("generate", PROMPT, "--raw", "--model", model, *OPTIONS).stdout == shown


def test_a_default_length_is_lowered_to_what_fits_and_a_request_may_name_more(llm, server):
    body = {"prompt": PROMPT, "max_tokens": 20, "ignore_eos": True}
    answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=HANG_S).json()
    assert answer["usage"]["completion_tokens"] == 20
    info = llm.engine.model_info
    long = [5] * (info.max_model_len - 3)
    answer = httpx.post(f"{server.url}/v1/completions", json={"prompt": long, "ignore_eos": True}, timeout=HANG_S)
    assert answer.json()["usage"]["completion_tokens"] == 3


def test_parameters_of_python_that_name_no_length_have_that_of_vllm(llm):
    for given, count in ((SamplingParams(ignore_eos=True), 16), (SamplingParams(max_tokens=None, ignore_eos=True), 9)):
        (output,) = llm.generate(PROMPT, given, use_tqdm=False)[0].outputs
        assert len(output.token_ids) == count
