"""The benchmark `isolation` as a whole: a run against servers, and what is left out."""

import json
import resource
import subprocess

import pytest

from benchmarks.__main__ import main
from benchmarks.isolation import command
from benchmarks.isolation.attack_table import ATTACKS
from benchmarks.isolation.connections import NUM_IDLE
from benchmarks.isolation.row import Row
from benchmarks.isolation.setups import loopback_network
from tests.text.grammar.processes import SELECTABLE


def test_a_machine_without_further_addresses_leaves_out_their_row(capsys, monkeypatch, tmp_path):
    def one_round(model, names, seconds, is_last, say):
        row = Row(0.01, 0.02, 0.01, 0.02, 0.1, 0.1, 0.1, 0.01, 0, 100, {}, *((0, 0.0, 1.0) if is_last else ()))
        return dict.fromkeys(names, row)

    monkeypatch.setattr(command, "one_round", one_round)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 2, "", "not permitted\n"))
    file = tmp_path / "isolation.json"
    assert (
        main(["isolation", "--models", "long", "--only", "ipv6_64,brackets", "--rounds", "2", "--out", str(file)]) == 0
    )
    assert "ipv6_64 is left out" in (output := capsys.readouterr().out)
    assert "not permitted" in output
    rows = json.loads(file.read_text())["long"]
    assert {name: [row["exit_s"] for row in rounds] for name, rounds in rows.items()} == {
        "idle": [None, 1.0], "brackets": [None, 1.0]
    }  # fmt: skip


def test_a_system_that_allows_few_open_files_leaves_out_the_row_of_many_connections(monkeypatch):
    attack = ATTACKS["idle_connections"]
    assert attack.num_open > attack.num_workers * NUM_IDLE > SELECTABLE
    for hard, is_left_out in ((1024, True), (attack.num_open, False), (resource.RLIM_INFINITY, False)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, hard=hard: (256, hard))
        assert ("may open only 1024 files" in command.obstacle(attack, "")) is is_left_out
        assert not command.obstacle(ATTACKS["brackets"], "")


def test_without_the_command_the_reason_is_said(monkeypatch):
    def missing(*_: object, **__: object) -> None:
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr(subprocess, "run", missing)
    with loopback_network() as why_not:
        assert why_not == "ip: No such file or directory"


@pytest.mark.long
def test_a_server_is_measured_beside_an_attacking_client(capsys):
    code = main(["isolation", "--models", "long", "--only", "brackets,two_keys", "--rounds", "2", "--seconds", "1"])
    assert code in (0, 1)  # depends on the speed of this machine
    output = capsys.readouterr().out
    lines = [line for line in output.splitlines() if line.startswith("long: ")]
    names = ("idle", "brackets", "two_keys")
    assert [ATTACKS[name].what in line for name, line in zip(names, lines, strict=True)] == [True] * 3
    assert "the server" not in output
