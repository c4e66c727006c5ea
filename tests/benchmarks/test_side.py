"""Programs under measurement: they answer, fail in words, and do not run while nobody asks."""

import os
import sys
from pathlib import Path

import pytest

from benchmarks.side import Side, SideFailed, last_words

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
    root = str(Path(__file__).parents[2])
    environ = {"PYTHONPATH": root, "QUIRE_TEST_SIDE": "set"}
    with Side([sys.executable, "-c", PROGRAM], tmp_path / "side.log", environ) as side:
        yield side


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
