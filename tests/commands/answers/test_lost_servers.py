"""An answer over quire.v1 in the terminal outlives its server."""

import asyncio
import signal
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from app.client.opening import ConnectionLost
from app.commands.answers import remote
from app.commands.answers.remote import websocket_answer
from app.commands.answers.streamed_text import TextStream
from app.config.base_url import read_base_url
from app.contract.errors import CannotStart
from tests.server.processes import HANG_S, RunningServer
from tests.server.quick_start import serving

# More than a window of credit: the server cannot have sent all of it before it is killed.
FIELDS = {"temperature": 0, "max_tokens": 1500, "ignore_eos": True}


def asked(runner: asyncio.Runner, server: RunningServer, notes: list[str]) -> TextStream:
    question = [{"role": "user", "content": "What is Quire?"}]
    return websocket_answer(runner, read_base_url(server.url, "--url"), None, question, FIELDS, notes.append)


def killed(server: RunningServer) -> int:
    """Kill a server, and return its port."""
    server.process.send_signal(signal.SIGKILL)
    server.process.wait(HANG_S)
    return urlsplit(server.url).port or 0


def test_an_answer_goes_on_after_kill_9_of_a_server_with_a_journal(tmp_path: Path):
    options, notes = ("--journal", str(tmp_path / "journal")), []
    with asyncio.Runner() as runner, serving(*options) as first:
        first.wait_until_ready()
        whole = "".join(asked(runner, first, notes))
        answer = asked(runner, first, notes)
        begun = next(answer)
        port = killed(first)
        with serving(*options, "--port", str(port)):
            assert begun + "".join(answer) == whole
    assert notes == ["the connection was lost meanwhile, and the answer went on"]


def test_a_server_without_one_says_that_the_rest_is_lost():
    with asyncio.Runner() as runner, serving() as first:
        first.wait_until_ready()
        answer = asked(runner, first, [])
        next(answer)
        with (
            serving("--port", str(killed(first))),
            pytest.raises(CannotStart, match="has no journal, so it has"),
        ):
            "".join(answer)


def test_a_server_that_stays_away_is_given_up(monkeypatch):
    monkeypatch.setattr(remote, "COMEBACK", remote.Backoff(give_up_s=0.1))
    with asyncio.Runner() as runner, serving() as first:
        first.wait_until_ready()
        answer = asked(runner, first, [])
        next(answer)
        killed(first)
        with pytest.raises(ConnectionLost, match=r"There was no other one for 0\.?1? s"):
            "".join(answer)
