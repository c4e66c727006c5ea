"""The terminal commands with the embedded model: in this process, over SSE and over WebSocket."""

import asyncio
import contextlib
import signal
import subprocess
import sys
import threading

import pytest

from app.checkpoint.names import resolve
from app.client.opening import ServerRefused
from app.commands.answers.local import LocalModel, LocalModels
from app.commands.answers.remote import sse_answer, websocket_answer
from app.config.base_url import read_base_url
from app.config.settings import make_config
from app.contract.errors import CannotStart, ConfigurationError, ContextLengthExceeded
from app.contract.sampling_params import SamplingParams
from app.engine import build
from tests.server.processes import HANG_S
from tests.server.quick_start import quire, serving

MESSAGES = [{"role": "user", "content": "What is Quire?"}]
FIELDS = {"temperature": 0, "max_tokens": 6, "ignore_eos": True}
DEAD = read_base_url("http://127.0.0.1:9", "--url")
PARAMS = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)


def base(server):
    """The parts of a server's URL."""
    return read_base_url(server.url, "--url")


@pytest.fixture(scope="module")
def model():
    with asyncio.Runner() as runner:
        local = LocalModel(make_config({"num_kv_blocks": 128}), runner)
        yield local
        local.close()


@pytest.fixture(scope="module")
def server():
    with serving("--api-key", "secret") as running:
        running.wait_until_ready()
        yield running


def test_ctrl_c_while_kernels_compile_ends_the_compilers(monkeypatch):
    is_cancelled = threading.Event()

    def compile_for_ever(report, check):
        signal.raise_signal(signal.SIGINT)
        try:
            while True:
                check()
        finally:
            is_cancelled.set()

    monkeypatch.setattr(build, "prepare_library", compile_for_ever)
    with asyncio.Runner() as runner, pytest.raises(KeyboardInterrupt):
        LocalModel(make_config({"num_kv_blocks": 128}), runner)
    assert is_cancelled.is_set()


def test_an_answer_is_streamed_in_pieces(model):
    """How many tokens a piece has depends on how fast they are read; the text does not."""
    long = SamplingParams(temperature=0, max_tokens=100, ignore_eos=True)
    pieces = list(model.chat(MESSAGES, long))
    assert len(pieces) > 1
    assert "".join(pieces) == "".join(model.chat(MESSAGES, long))


def test_an_answer_closed_early_is_aborted_and_the_next_one_works(model):
    endless = model.chat(MESSAGES, SamplingParams(max_tokens=None, ignore_eos=True))
    assert next(endless) is not None
    endless.close()
    assert "".join(model.complete("Quire", PARAMS))


def test_an_answer_that_was_cut_can_be_continued(model):
    whole = "".join(model.chat(MESSAGES, SamplingParams(temperature=0, max_tokens=12)))
    begin = "".join(model.chat(MESSAGES, SamplingParams(temperature=0, max_tokens=6)))
    messages = [*MESSAGES, {"role": "assistant", "content": begin}]
    assert begin + "".join(model.chat(messages, PARAMS)) == whole


def test_another_model_is_loaded_anew_and_one_that_is_refused_changes_nothing(tmp_path):
    with asyncio.Runner() as runner, contextlib.closing(
        LocalModels(make_config({"num_kv_blocks": 128}), runner, PARAMS)
    ) as models:  # fmt: skip
        assert models.model == ("guide", 2048)
        assert "guide" in [each.name for each in models.models()]
        with pytest.raises(ConfigurationError, match="no folder or file"):
            models.use(str(tmp_path / "nowhere"))
        first = "".join(models.answer(MESSAGES))
        models.use(str(resolve("guide")))
        assert models.model.name == "guide" and "".join(models.answer(MESSAGES)) == first


def test_a_prompt_beyond_the_context_is_rejected(model):
    with pytest.raises(ContextLengthExceeded):
        list(model.complete("word " * 3000, PARAMS))


def test_local_sse_and_websocket_answers_are_the_same(model, server):
    expected = "".join(model.chat(MESSAGES, PARAMS))
    assert "".join(sse_answer(base(server), "secret", MESSAGES, FIELDS)) == expected
    with asyncio.Runner() as runner:
        assert "".join(websocket_answer(runner, base(server), "secret", MESSAGES, FIELDS)) == expected


def test_a_wrong_key_raises_the_servers_error(server):
    with pytest.raises(ServerRefused) as caught:
        list(sse_answer(base(server), "wrong", MESSAGES, FIELDS))
    assert caught.value.code == "invalid_api_key"


def test_a_rejected_request_raises_the_servers_error(server):
    with pytest.raises(ServerRefused) as caught:
        list(sse_answer(base(server), "secret", MESSAGES, {"temperature": 9}))
    assert (caught.value.code, caught.value.param) == ("invalid_value", "temperature")


def test_an_unreachable_server_is_an_error_with_advice():
    with pytest.raises(CannotStart, match="ask again once the server runs"):
        list(sse_answer(DEAD, None, MESSAGES, {}))
    with asyncio.Runner() as runner, pytest.raises(CannotStart, match="ask again once the server runs"):
        list(websocket_answer(runner, DEAD, None, MESSAGES, {}))


def test_generate_writes_the_answer_and_nothing_else():
    result = quire("generate", "What is Quire?", "--max-tokens", "4", "--temperature", "0")
    assert result.returncode == 0
    assert result.stdout.strip()


@pytest.mark.parametrize("ways", [[], ["--ws"]])
def test_chat_reads_questions_from_a_pipe(server, ways):
    result = subprocess.run(
        [sys.executable, "-m", "app", "chat", "--url", server.url, "--api-key", "secret", "--max-tokens", "4", *ways],
        input="What is Quire?\n/new\nWho are you?\n",
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )
    assert (result.returncode, result.stderr) == (0, "(new conversation)\n")
    assert len(result.stdout.splitlines()) >= 2
