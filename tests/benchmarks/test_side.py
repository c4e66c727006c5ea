"""Programs under measurement: they answer, report errors, and are stopped between requests."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.side import ROOT, Program, Side, SideFailed, last_line, with_checkout

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
    if request["do"] == "fail":
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
    """Wait until a child has stopped or ended; return whether it has stopped."""
    found = os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    return found is not None and found.si_code == os.CLD_STOPPED


def test_printed_lines_are_not_answers(side, tmp_path):
    answer = side.ask(do="something")
    assert (answer["saw"], answer["variable"]) == ("something", "set")
    assert "this is not an answer" in (tmp_path / "side.log").read_text()


def test_a_program_is_stopped_between_requests(side):
    pid = side.ask(do="something")["pid"]
    assert is_stopped(pid)
    assert side.ask(do="something")["pid"] == pid
    assert is_stopped(pid)


def test_an_exception_is_reported_in_one_line_and_the_program_continues(side):
    with pytest.raises(SideFailed, match=r"^ValueError: not this one, nor that$"):
        side.ask(do="fail")
    assert side.ask(do="continue")["saw"] == "continue"


def test_the_error_of_a_dead_program_has_its_last_line(side):
    with pytest.raises(SideFailed, match="ended early: about to die"):
        side.ask(do="die")


def test_a_stopped_program_can_be_closed_twice(side):
    pid = side.ask(do="something")["pid"]
    side.close()
    side.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_missing_program_is_an_error(tmp_path):
    with pytest.raises(SideFailed, match="no-such-program"):
        Side(["/no-such-program"], tmp_path / "side.log")


def test_the_last_line_of_a_log_is_the_last_that_is_not_empty(tmp_path):
    log = tmp_path / "log"
    log.write_bytes(b"first\n  last line \n\n")
    assert last_line(log) == "last line"
    log.write_bytes(b"")
    assert last_line(log) == "no output"


def is_alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_an_error_of_a_request_is_one_line_and_the_program_continues(program):
    assert program.ask("ready")["port"] > 0
    with pytest.raises(SideFailed, match=r"^server: 0 streams are open instead of 1$"):
        program.ask("wait_open", num_streams=1, timeout_s=0)
    with pytest.raises(SideFailed, match=r"^server: KeyError: 'sing'$"):
        program.ask("sing")
    assert program.ask("tokens") == {"tokens": {}}


def test_a_killed_program_is_an_error(program):
    program.ask("ready")
    os.kill(program.pid, signal.SIGKILL)
    with pytest.raises(SideFailed, match="ended early"):
        program.ask("ready")


def test_a_program_that_does_not_answer_times_out(program):
    program.ask("ready")
    program.stop()
    program.limit_s = 0.1
    with pytest.raises(SideFailed, match=r"no answer within 0.1 s"):
        program.ask("tokens")
    program.limit_s = HANG_S
    program.resume()
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
    while is_alive(pid):
        assert time.monotonic() < deadline
        time.sleep(0.02)
