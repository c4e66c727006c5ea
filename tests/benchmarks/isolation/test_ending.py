"""The end of a row of the last round: memory, SIGTERM, children."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import Mock

import pytest

from benchmarks.isolation import ending
from benchmarks.isolation.ending import end, memory_back, runs
from benchmarks.isolation.row import MAX_GROWTH_BYTES
from benchmarks.server_process import ServerProcess

ENDS = "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit({code}))\n"
STAYS = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
CHILD = "import subprocess; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep({seconds})'])\n"
WAITS = "print('ready', flush=True)\nwhile True: signal.pause()\n"


@contextmanager
def process(script: str) -> Iterator[ServerProcess]:
    """A process that is ready to get a signal."""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as found:
        assert found.stdout is not None
        found.stdout.readline()
        try:
            yield ServerProcess(1, found)
        finally:
            found.kill()


def growth(*values: int) -> Mock:
    return Mock(now=Mock(side_effect=values))


def test_memory_that_is_back_is_waited_for_and_sigterm_ends_the_server():
    with process(ENDS.format(code=0) + WAITS) as server:
        found = end(server, growth(300_000_000, 65_000_000, 64_000_000))
    assert (found.kept_bytes, found.exit_s > 0) == (64_000_000, True)


def test_memory_that_stays_is_reported_after_a_while(monkeypatch):
    monkeypatch.setattr(ending, "BACK_S", 0.0)
    server = Mock(exit_code=Mock(return_value=None))
    kept, took = memory_back(server, growth(*[300_000_000] * 2), 64e6)
    assert (kept, took > 0) == (300_000_000, True)


def test_memory_below_that_before_is_none_kept():
    assert memory_back(Mock(exit_code=Mock(return_value=None)), growth(-5), 64e6)[0] == 0


def test_a_server_that_takes_ever_more_memory_is_a_failure():
    server = Mock(exit_code=Mock(return_value=None))
    with pytest.raises(RuntimeError, match="GiB more memory after the attack"):
        memory_back(server, growth(MAX_GROWTH_BYTES + 1), 64e6)


def test_a_server_that_ends_by_itself_is_a_failure():
    with process("import sys; print(); sys.exit(70)") as server:
        assert server.exit_code(60) == 70
        with pytest.raises(RuntimeError, match="ended with exit code 70 after the attack"):
            end(server, growth(0))


def test_a_server_that_sigterm_does_not_end_is_a_failure_with_its_memory(monkeypatch):
    monkeypatch.setattr(ending, "EXIT_S", 0.01)
    with process(STAYS + WAITS) as server, pytest.raises(RuntimeError, match="did not end the server") as caught:
        end(server, growth(5_000_000))
    assert caught.value.__notes__ == ["memory +5 MB after 0 s"]


def test_another_exit_code_than_0_is_a_failure():
    with process(ENDS.format(code=3) + WAITS) as server, pytest.raises(RuntimeError, match="exit code 3, not 0"):
        end(server, growth(0))


def test_children_that_go_on_are_a_failure(monkeypatch):
    monkeypatch.setattr(ending, "CHILDREN_S", 0.0)
    with (
        process(ENDS.format(code=0) + CHILD.format(seconds=30) + WAITS) as server,
        pytest.raises(RuntimeError, match="left 1 of its 1 children running"),
    ):
        end(server, growth(0))


def test_a_process_that_nobody_has_waited_for_does_not_run():
    with subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE) as child:
        assert runs(child.pid)
        assert child.stdin is not None
        child.stdin.close()
        while runs(child.pid):
            pass
        assert child.returncode is None  # it is still listed
    assert not runs(child.pid)
