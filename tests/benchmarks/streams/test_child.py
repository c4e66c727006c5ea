"""Children answer or are given up in words, and none outlives the command."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.streams.child import Child, ChildFailed

ROOT = Path(__file__).parents[3]
BARE = "benchmarks.streams.server_process"
SETTINGS = {"serve": "bare", "cores": [], "stall_timeout_s": 60}
HANG_S = 60.0


@pytest.fixture
def child(tmp_path):
    with Child(BARE, SETTINGS, tmp_path / "log") as child:
        yield child


def is_there(pid: int) -> bool:
    """Whether a process lives (one that has ended and was not waited for does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_requests_are_answered_in_order(child):
    assert child.name == "server"
    assert child.ask("ready")["port"] > 0
    assert child.ask("wait_open", num_streams=0, patience_s=1) == {}
    assert child.ask("tokens") == {"tokens": {}}


def test_a_refusal_is_one_line_and_the_child_goes_on(child):
    with pytest.raises(ChildFailed, match=r"^server: 0 streams are open instead of 1$"):
        child.ask("wait_open", num_streams=1, patience_s=0)
    with pytest.raises(ChildFailed, match=r"^server: KeyError: 'sing'$"):
        child.ask("sing")
    assert child.ask("tokens") == {"tokens": {}}


def test_a_child_that_dies_is_told_with_its_last_words(tmp_path):
    with (
        Child("benchmarks.streams.no_such_module", {}, tmp_path / "log") as child,
        pytest.raises(ChildFailed, match=r"ended early; its last words: .*No module named"),
    ):
        child.ask("ready")


def test_a_child_that_is_killed_is_told(child):
    child.ask("ready")
    os.kill(child.pid, signal.SIGKILL)
    with pytest.raises(ChildFailed, match="ended early"):
        child.ask("ready")


def test_a_child_that_does_not_answer_is_not_waited_for(child):
    child.ask("ready")
    child.freeze()
    with pytest.raises(ChildFailed, match=r"no answer within 0.1 s"):
        child.ask("tokens", within_s=0.1)
    child.thaw()
    assert child.receive() == {"tokens": {}}


def test_closing_ends_it(child):
    child.ask("ready")
    child.freeze()
    child.close()
    assert not is_there(child.pid)
    child.close()


def test_a_child_ends_with_its_parent(tmp_path):
    code = f"""
import os, signal
from pathlib import Path
from benchmarks.streams.child import Child
child = Child({BARE!r}, {SETTINGS!r}, Path({str(tmp_path / "log")!r}))
child.ask("ready")
print(child.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=HANG_S)
    pid, deadline = int(found.stdout), time.monotonic() + HANG_S
    while is_there(pid):
        assert time.monotonic() < deadline
        time.sleep(0.02)
