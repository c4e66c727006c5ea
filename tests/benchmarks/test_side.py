"""Programs under measurement: they answer, fail in words, and do not run while nobody asks."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.side import ROOT, Program, Side, SideFailed, last_words, with_checkout

SETTINGS = {"serve": "bare", "cores": [], "stall_timeout_s": 60}
BARE = [sys.executable, "-m", "benchmarks.streams.server_process", json.dumps(SETTINGS)]
HANG_S = 60.0

PROGRAM = """
import os, sys
from benchmarks.side import serve

def answer(request):
    if request["do"] == "die":
        print("about to die")
        os._exit(3)
    if request["do"] == "refuse":
        raise ValueError("not this one,\\nnor that")
    print("this is not an answer")
    return {"pid": os.getpid(), "saw": request["do"], "variable": os.environ.get("QUIRE_TEST_SIDE")}

serve(answer)
"""


@pytest.fixture
def side(tmp_path):
    environ = {**with_checkout(), "QUIRE_TEST_SIDE": "set"}
    with Side([sys.executable, "-c", PROGRAM], tmp_path / "side.log", environ) as side:
        yield side


@pytest.fixture
def program(tmp_path):
    """The bare server of the benchmark `streams`."""
    with Program(BARE, tmp_path / "log", with_checkout(), "server") as program:
        yield program


def is_stopped(pid: int) -> bool:
    """Wait until a child has stopped or ended, and say whether it has stopped."""
    found = os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    return found is not None and found.si_code == os.CLD_STOPPED


def test_what_a_program_prints_is_no_answer(side, tmp_path):
    answer = side.ask(do="something")
    assert (answer["saw"], answer["variable"]) == ("something", "set")
    assert "this is not an answer" in (tmp_path / "side.log").read_text()


def test_a_program_is_stopped_while_nobody_asks_it(side):
    pid = side.ask(do="something")["pid"]
    assert is_stopped(pid)
    assert side.ask(do="something")["pid"] == pid
    assert is_stopped(pid)


def test_an_exception_is_one_line_and_the_program_goes_on(side):
    with pytest.raises(SideFailed, match=r"^ValueError: not this one, nor that$"):
        side.ask(do="refuse")
    assert side.ask(do="go on")["saw"] == "go on"


def test_a_program_that_dies_is_quoted(side):
    with pytest.raises(SideFailed, match="ended early: about to die"):
        side.ask(do="die")


def test_a_stopped_program_can_be_ended_twice(side):
    pid = side.ask(do="something")["pid"]
    side.close()
    side.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_missing_program_is_said(tmp_path):
    with pytest.raises(SideFailed, match="no-such-program"):
        Side(["/no-such-program"], tmp_path / "side.log")


def test_last_words_are_the_last_line_that_says_something(tmp_path):
    log = tmp_path / "log"
    log.write_bytes(b"first\n  last one \n\n")
    assert last_words(log) == "last one"
    log.write_bytes(b"")
    assert last_words(log) == "without a word"


def is_there(pid: int) -> bool:
    """Whether a process lives (one that has ended and was not waited for does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_refusal_is_one_line_and_the_program_goes_on(program):
    assert program.ask("ready")["port"] > 0
    with pytest.raises(SideFailed, match=r"^server: 0 streams are open instead of 1$"):
        program.ask("wait_open", num_streams=1, patience_s=0)
    with pytest.raises(SideFailed, match=r"^server: KeyError: 'sing'$"):
        program.ask("sing")
    assert program.ask("tokens") == {"tokens": {}}


def test_a_program_that_is_killed_is_told(program):
    program.ask("ready")
    os.kill(program.pid, signal.SIGKILL)
    with pytest.raises(SideFailed, match="ended early"):
        program.ask("ready")


def test_a_program_that_does_not_answer_is_not_waited_for(program):
    program.ask("ready")
    program.stop()
    program.limit_s = 0.1
    with pytest.raises(SideFailed, match=r"no answer within 0.1 s"):
        program.ask("tokens")
    program.limit_s = HANG_S
    program.go_on()
    assert program.receive() == {"tokens": {}}


def test_a_program_ends_with_its_parent(tmp_path):
    code = f"""
import os, signal
from pathlib import Path
from benchmarks.side import Program
program = Program({BARE!r}, Path({str(tmp_path / "log")!r}))
program.ask("ready")
print(program.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=HANG_S)
    pid, deadline = int(found.stdout), time.monotonic() + HANG_S
    while is_there(pid):
        assert time.monotonic() < deadline
        time.sleep(0.02)
