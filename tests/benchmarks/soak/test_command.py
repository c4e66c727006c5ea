"""A soak of seconds, with a real server that is killed."""

import json

import pytest

from benchmarks.__main__ import main
from benchmarks.soak import command
from benchmarks.soak.promises import Checked, Promise


@pytest.mark.long
def test_every_answer_arrives(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(command, "IDLE_S", 1.0)
    file = tmp_path / "soak.json"
    main(["soak", "--minutes", "0.5", "--clients", "6", "--out", str(file)])  # so short, memory still grows
    found = json.loads(file.read_text())
    assert found["faults"] == [], capsys.readouterr().out
    assert found["kills"] == 3
    assert found["visits"]["with kills"]["comes back: complete and correct"] > 0


@pytest.mark.parametrize("given", [["--minutes", "0"], ["--minutes", "-1", "--checks"], ["--clients", "0"]])
def test_times_must_be_positive(given, capsys):
    assert main(["soak", *given]) == 2
    assert "--minutes and --clients must be positive" in capsys.readouterr().err


def test_what_a_run_does_not_measure_stays_in_the_file(tmp_path, monkeypatch):
    promises = {name: Promise("it is listed", ("benchmarks",)) for name in ("R1", "R2", "R3")}
    monkeypatch.setattr(command, "PROMISES", {**promises, "R3": Promise("it is known", ("benchmarks", "nonsense"))})
    file = tmp_path / "soak.json"
    command.save(file, {"minutes": 30, "kills": 3}, {"R2": Checked(False, "before", 1.0, "missed")})
    assert main(["soak", "--minutes", "0", "--checks", "r3,R1", "--out", str(file)]) == 1
    found = json.loads(file.read_text())
    assert (found["minutes"], found["kills"]) == (30, 3)
    assert [*found["checks"]] == ["R1", "R2", "R3"]
    assert [one["is_kept"] for one in found["checks"].values()] == [True, False, False]
    assert found["checks"]["R2"]["started"] == "before"
    command.save(file, {"minutes": 2}, {})
    assert json.loads(file.read_text()) == {**found, "minutes": 2}
