"""One point of the benchmark `chaos`, with real processes."""

import json

import pytest

from benchmarks.__main__ import main
from benchmarks.chaos import command
from benchmarks.chaos.killing import Outcome
from benchmarks.chaos.points import Point, Situation


@pytest.mark.long
def test_a_killed_server_goes_on_and_its_figures_are_written(tmp_path, capsys):
    file = tmp_path / "chaos.json"
    options = ["--points", "4", "--only", "4", "--streams", "9", "--max-tokens", "60", "--out", str(file)]
    assert main(["chaos", *options]) == 0, capsys.readouterr().out
    [point] = json.loads(file.read_text())["points"]
    assert point["situation"] == "middle" and point["faults"] == []
    assert point["num_continued"] > 0 and point["first_tokens_s"]
    assert "1 points, 9 answers, 0 faults" in capsys.readouterr().out


def test_an_answer_that_differs_is_printed_and_ends_with_1(monkeypatch, capsys):
    async def kill_all(*_: object) -> list[Outcome]:
        return [Outcome(Point(7, Situation.DRAIN), 5, [1.0], 1, ["greedy 0 over SSE: choice 0 has another content"])]

    monkeypatch.setattr(command, "kill_all", kill_all)
    assert main(["chaos"]) == 1
    assert "point 7, greedy 0 over SSE: choice 0 has another content" in capsys.readouterr().out


def test_counts_must_be_positive(capsys):
    assert main(["chaos", "--points", "0"]) == 2
    assert "must be at least 1" in capsys.readouterr().err
