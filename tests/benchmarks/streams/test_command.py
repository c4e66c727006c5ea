"""The benchmark `streams`: rejected options, a tiny run from end to end, exit codes, and failures of a cell."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.__main__ import main
from benchmarks.limits import Limit, limits
from benchmarks.side import SideFailed
from benchmarks.streams import command as bench_streams
from benchmarks.streams import figures, rounds
from tests.benchmarks.streams.child_processes import children
from tests.benchmarks.streams.samples import RUN

ROOT = Path(__file__).parents[3]
HANG_S = 60.0
TINY = ("--streams", "4", "--rate", "20", "--seconds", "0.3")


@pytest.fixture(autouse=True)
def _short(monkeypatch):
    for name in ("WARM_S", "SETTLE_S", "LEAST_WARM_UP_S"):
        monkeypatch.setattr(rounds, name, 0.1)
    monkeypatch.setattr(bench_streams, "busy_cores", lambda seconds: 0.0)


def require(monkeypatch, *costs: Limit) -> None:
    """Let only these limits be required, and those on faults."""
    faults = {name: limit for name, limit in limits("streams").items() if name in figures.FAULTS}
    monkeypatch.setattr(figures, "limits", lambda benchmark: {limit.name: limit for limit in costs} | faults)


@pytest.fixture
def measured(monkeypatch):
    """A run without processes; tests can change its figures."""
    found = dict(RUN)
    monkeypatch.setattr(bench_streams, "measure", lambda cell, setup: dict(found))
    return found


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--only", "nothing"), "unknown 'nothing'"),
        (("--streams", "0"), "--streams is 0; it must be between 1 and 2000"),
        (("--streams", "2001"), "--streams is 2001"),
        (("--seconds", "nan"), "--seconds is nan"),
        (("--rate", "0"), "--rate is 0"),
        (("--repeat", "0"), "--repeat is 0; it must be at least 1"),
        (("--strems", "3"), "'--streams'"),
    ],
)
def test_invalid_options_are_rejected(options, says, capsys):
    assert main(["streams", *options]) == 2
    assert says in capsys.readouterr().err


def test_an_output_that_cannot_be_a_folder_is_rejected(tmp_path, capsys):
    (tmp_path / "file").touch()
    assert main(["streams", "--output", str(tmp_path / "file")]) == 2
    assert "cannot be a folder" in capsys.readouterr().err


@pytest.mark.long
def test_a_tiny_run_measures_prints_and_writes(tmp_path, capsys, monkeypatch):
    require(monkeypatch)
    out = tmp_path / "out"
    assert main(["streams", *TINY, "--only", "sse,bare", "--repeat", "2", "--output", str(out)]) == 0
    found = json.loads((out / "streams.json").read_text())
    assert (found["benchmark"], found["streams"], found["rate"], found["repeat"]) == ("streams", 4, 20, 2)
    assert found["versions"]["uvloop"] and found["machine"]["cores"] >= 1
    assert [(cell["name"], len(cell["runs"])) for cell in found["cells"]] == [("sse", 2), ("bare", 2)]
    for cell in found["cells"]:
        assert all(run["lost"] == run["doubled"] == run["wrong"] == 0 < run["events"] for run in cell["runs"])
    assert ElementTree.parse(out / "streams.svg").getroot().tag.endswith("svg")
    captured = capsys.readouterr()
    assert "no token was lost, doubled or wrong" in captured.out
    assert "2/2 bare: " in captured.err


@pytest.mark.usefixtures("measured")
def test_a_missed_limit_exits_with_1_and_is_printed(monkeypatch, capsys):
    require(monkeypatch, Limit("sse us_per_event", "at_most", 0, "us", ""))
    assert main(["streams", *TINY, "--streams", "100", "--only", "sse"]) == 1
    assert "missed: sse us_per_event is 20 us, at most 0 us: MISSED by 20 us" in capsys.readouterr().out


@pytest.mark.usefixtures("measured")
def test_a_run_too_small_to_judge_is_not_a_failure(monkeypatch, capsys):
    require(monkeypatch, Limit("sse us_per_event", "at_most", 0, "us", ""))
    assert main(["streams", *TINY, "--only", "sse"]) == 0
    assert "sse us_per_event is 20 us, at most 0 us: too small to judge" in capsys.readouterr().out


@pytest.mark.parametrize(("fault", "code"), [(0, 0), (1, 1)])
def test_a_lost_token_exits_with_1(measured, fault, code):
    measured["lost"] = fault
    assert main(["streams", *TINY, "--only", "ndjson"]) == code


@pytest.mark.usefixtures("measured")
def test_a_failed_cell_is_an_error_line_and_the_others_run(monkeypatch, tmp_path, capsys):
    def measure(cell, setup):
        if cell.name == "sse":
            raise SideFailed("client: an answer is '503'")
        return dict(RUN)

    monkeypatch.setattr(bench_streams, "measure", measure)
    assert main(["streams", *TINY, "--only", "sse,ndjson", "--output", str(tmp_path)]) == 1
    captured = capsys.readouterr()
    assert "quire: error: sse: client: an answer is '503'" in captured.err
    assert "missed: sse 1: client: an answer is '503'" in captured.out
    found = json.loads((tmp_path / "streams.json").read_text())
    assert found["failures"] == {"sse 1": "client: an answer is '503'"}
    assert [len(cell["runs"]) for cell in found["cells"]] == [0, 1]


def test_an_interrupt_keeps_the_figures(monkeypatch, tmp_path):
    def measure(cell, setup):
        if cell.name == "ws":
            raise KeyboardInterrupt
        return dict(RUN)

    monkeypatch.setattr(bench_streams, "measure", measure)
    assert main(["streams", *TINY, "--only", "sse,ws,bare", "--output", str(tmp_path)]) == 130
    found = json.loads((tmp_path / "streams.json").read_text())
    assert [len(cell["runs"]) for cell in found["cells"]] == [1, 0, 0]


def test_ctrl_c_leaves_no_process(tmp_path):
    command = [sys.executable, "-m", "benchmarks", "streams", "--only", "bare", "--streams", "2", "--seconds", "60"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        deadline = time.monotonic() + HANG_S
        while len(found := children(process.pid)) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=HANG_S)
    assert process.returncode == 130
    while any(Path(f"/proc/{pid}").exists() for pid in found):  # killed processes exist until they are reaped
        assert time.monotonic() < deadline + HANG_S
        time.sleep(0.05)
