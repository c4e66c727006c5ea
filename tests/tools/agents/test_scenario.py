"""The scenario lets a client work twice with a restart between, and finds what it does wrong."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest

from app.contract.errors import CannotStart
from app.observe.console import Console
from tests.cases import long
from tests.loadgen.fakes import free_port
from tools.agents import __main__ as target
from tools.agents.clients import Setup
from tools.agents.packages import CannotInstall
from tools.agents.scenario import Outcome, play, serving

TOY = Path(__file__).with_name("toy_agent.py")


@pytest.fixture
def port() -> Iterator[int]:
    with free_port() as port:
        yield port


def run(folder: Path, port: int, fault: str = "", departures: list[str] | None = None, wire: str = "chat") -> Outcome:
    arguments = (str(TOY), f"http://127.0.0.1:{port}")
    setup = Setup("toy", wire, arguments, arguments, {"TOY": fault}, {".toy/config": "x"})
    return play(setup, Path(sys.executable), folder, lambda: departures or [], port=port)


class Played(NamedTuple):
    """What a client without a fault has done, and where."""

    outcome: Outcome
    folder: Path


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    folder = tmp_path_factory.mktemp("toy")
    with free_port() as port:
        return Played(run(folder, port), folder)


def test_a_client_reads_edits_and_answers_twice_with_a_restart_between(played):
    assert played.outcome.problems == []
    assert (played.folder / "work" / "note.txt").read_text() == "# Notes\n\nbird: crane\nweather: rain\n"
    assert (played.folder / "home" / ".toy" / "config").read_text() == "x"
    log = (played.folder / "log" / "server.log").read_text()
    assert log.count("Ready: scripted, context 32,768 tokens") == 2


def test_the_shapes_and_lengths_of_all_requests_are_told(played):
    assert len(played.outcome.requests) == len(played.outcome.num_tokens) == 6
    assert played.outcome.num_tokens == sorted(played.outcome.num_tokens)
    assert played.outcome.requests[0]["body"]["tools"] == ["function Read", "function Edit"]


def test_each_prompt_begins_with_the_one_before(played):
    files = sorted((played.folder / "log" / "prompts").glob("*.json"))
    prompts = [json.loads(file.read_text()) for file in files]
    assert all(later[: len(earlier)] == earlier for earlier, later in pairwise(prompts))


@pytest.mark.parametrize(
    ("fault", "problem"),
    [
        ("lazy", "turn 1: the file was not edited"),
        long("forgetful", "turn 2: it did not show 'The file has named: heron, stork, crane.'"),
        long("wrong", "POST /v1/chat/completions was answered with 400"),
        ("failing", "turn 1: it ended with exit code 3"),
        ("huge", "the server says: A client's first prompt needs a context of more than"),
    ],
)
def test_a_fault_of_a_client_is_told(tmp_path, port, fault, problem):
    assert any(each.startswith(problem) for each in run(tmp_path, port, fault).problems)


def test_a_connection_to_another_host_is_told(tmp_path, port):
    outcome = run(tmp_path, port, departures=["name api.example.com"])
    assert outcome.problems == ["turn 1: it asked for another host: name api.example.com"]


def test_a_client_that_is_to_use_a_websocket_and_does_not_is_told(tmp_path, port):
    outcome = run(tmp_path, port, "failing", wire="chat-websocket")
    assert outcome.problems[-1] == "it has sent requests beside its WebSocket"


def test_a_server_that_does_not_start_is_told(tmp_path, port):
    with (
        socket.create_server(("127.0.0.1", port)),
        pytest.raises(RuntimeError, match="does not start"),
        serving(tmp_path, port),
    ):
        pass


def test_a_machine_that_cannot_try_says_so_and_exits_75(monkeypatch, capsys):
    def fail(names: list[str]) -> None:
        raise CannotInstall("npm could not install the clients.\nENOTFOUND")

    monkeypatch.setattr(target, "install", fail)
    assert target.main([]) == 75
    assert "npm could not install the clients" in capsys.readouterr().err


def test_a_tokenizer_that_cannot_be_fetched_is_told(monkeypatch, capsys):
    def fail(console: Console) -> Path:
        raise CannotStart("smollm2 is not on this machine, and cannot be downloaded: no network.")

    monkeypatch.setattr(target, "install", lambda names: {})
    monkeypatch.setattr(target.smollm2, "find_or_fetch", fail)
    assert target.main([]) == 75
    assert "smollm2 is not on this machine" in capsys.readouterr().err


def test_an_unknown_client_is_named_with_those_that_are_known(capsys):
    with pytest.raises(SystemExit):
        target.main(["Codex"])
    assert "'Codex' is no client; use claude-code, codex, opencode" in capsys.readouterr().err
