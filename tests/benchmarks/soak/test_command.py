"""A soak of seconds, with a real server that is killed."""

import json

import pytest

from benchmarks.__main__ import main
from benchmarks.soak import command


@pytest.mark.long
def test_every_answer_arrives(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(command, "IDLE_S", 1.0)
    file = tmp_path / "soak.json"
    main(["soak", "--minutes", "0.5", "--clients", "6", "--out", str(file)])  # so short, memory still grows
    found = json.loads(file.read_text())
    assert found["faults"] == [], capsys.readouterr().out
    assert found["kills"] == 3
    assert found["visits"]["with kills"]["comes back: complete and correct"] > 0


def test_times_must_be_positive(capsys):
    assert main(["soak", "--minutes", "0"]) == 2
    assert "--minutes and --clients must be positive" in capsys.readouterr().err
