"""The benchmark `hostile` as a whole: what it reports, and a short run against a server."""

from __future__ import annotations

import json
from contextlib import nullcontext

import pytest

from benchmarks.__main__ import main
from benchmarks.hostile import command
from benchmarks.hostile.command import Result
from benchmarks.hostile.outcomes import Outcomes
from benchmarks.hostile.search import Tried
from benchmarks.isolation.row import Row

QUIET = Row(0.01, 0.02, 0.01, 0.02, 0.1, 0.1, 0.1, 0.01, 0, 100, {})
FINE = QUIET._replace(answers={"400": 2}, kept_bytes=0, back_s=0.0, exit_s=1.0)
SENT = Outcomes(1, {"It is too large": 2}, 3, {"No text satisfies it.": 3})


@pytest.fixture
def without_servers(monkeypatch):
    monkeypatch.setattr(command, "serving", lambda *options: nullcontext())
    monkeypatch.setattr(command, "write_checkpoint", lambda name, folder: folder)
    results = {"regex": Result(QUIET, FINE, SENT, [Tried((1, 2), 0.5, 100, 400)], [])}
    monkeypatch.setattr(command, "search", lambda server, language, num_requests, seed: results[language])
    return results


def test_a_search_within_the_limits(without_servers, capsys, tmp_path):
    file = tmp_path / "hostile.json"
    assert main(["hostile", "--languages", "regex", "--out", str(file)]) == 0
    output = capsys.readouterr().out
    assert "2 x 400" in output and "regex: 1 accepted, 2 at a limit, 3 rejected" in output
    found = json.loads(file.read_text())["regex"]
    assert found["row"]["exit_s"] == 1.0 and found["costliest"][0]["genes"] == [1, 2]
    assert found["outcomes"]["limits"] == {"It is too large": 2}


@pytest.mark.parametrize(
    ("result", "line"),
    [
        (Result(QUIET, FINE._replace(schema_s=8.9), SENT, [], []), "new schema: first token of a new request is 8.9 s"),
        (Result(QUIET, FINE._replace(livez_max_s=0.3), SENT, [], []), "longest answer of /livez is 0.3 s"),
        (Result(QUIET, FINE, SENT, [], ["status 500"]), "status 500"),
    ],
)
def test_what_is_missed_is_said(without_servers, capsys, result, line):
    without_servers["regex"] = result
    assert main(["hostile", "--languages", "regex"]) == 1
    output = capsys.readouterr().out
    assert "missed: regex" in output and line in output


def test_a_server_that_fails_is_said(without_servers, capsys, monkeypatch):
    def failing(*_: object) -> Result:
        raise RuntimeError("the server ended with exit code 70 after the attack")

    monkeypatch.setattr(command, "search", failing)
    monkeypatch.setattr(command, "why", lambda server, error: str(error))
    assert main(["hostile", "--languages", "regex"]) == 1
    assert "missed: regex: the server ended with exit code 70" in capsys.readouterr().out


def test_a_run_that_is_ended_early_leaves_the_searches_before(without_servers, monkeypatch, tmp_path):
    def ended_at_lark(server: object, language: str, *_: object) -> Result:
        if language == "lark":
            raise KeyboardInterrupt
        return without_servers[language]

    monkeypatch.setattr(command, "search", ended_at_lark)
    file = tmp_path / "hostile.json"
    assert main(["hostile", "--languages", "regex,lark", "--out", str(file)]) == 130
    assert list(json.loads(file.read_text())) == ["regex"]


@pytest.mark.long
def test_a_short_search_against_a_server(capsys):
    assert main(["hostile", "--languages", "regex,lark", "--requests", "20"]) in (0, 1)  # by the speed of this machine
    output = capsys.readouterr().out
    assert "the server" not in output and "status" not in output
