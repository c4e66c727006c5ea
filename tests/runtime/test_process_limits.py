"""A process that has limited itself ends at its limits."""

import resource
import signal
import subprocess
import sys

import pytest

from app.runtime.process_limits import raise_file_limit
from app.runtime.process_memory import memory_bytes

LIMITED = """
import resource
from app.runtime.process_limits import limit_process
limit_process(cpu_s={cpu_s}, more_bytes={more_bytes})
assert resource.getrlimit(resource.RLIMIT_CORE) == (0, 0)
{work}
"""

UNKNOWN_SIZE = """
from app.runtime import process_limits
process_limits.memory_bytes = lambda: 0
limit_process(cpu_s=0.5, more_bytes=2**20)
print(len(bytes(256 * 2**20)), flush=True)
while True: pass
"""


def end_of(work: str, *, cpu_s: float = 60, more_bytes: int = 2**40) -> tuple[int, str]:
    """The exit code of a limited process, negative for a signal, and what it has written."""
    code = LIMITED.format(cpu_s=cpu_s, more_bytes=more_bytes, work=work)
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    return result.returncode, result.stdout + result.stderr


def test_work_within_the_limits_goes_on():
    assert end_of("print(len(bytes(2**20)))", more_bytes=64 * 2**20) == (0, "1048576\n")


def test_processor_time_ends_it():
    assert end_of("while True: pass", cpu_s=0.05)[0] == -signal.SIGPROF


def test_time_that_it_waits_does_not_count():
    assert end_of("import time; time.sleep(0.2); print('awake')", cpu_s=0.1) == (0, "awake\n")


@pytest.mark.skipif(not memory_bytes(), reason="the system does not tell the size of a process")
def test_memory_beyond_the_limit_is_not_given():
    code, output = end_of("bytes(256 * 2**20)", more_bytes=128 * 2**20)
    assert code == 1 and "MemoryError" in output


def test_without_the_size_of_the_process_only_its_time_is_limited():
    """A limit of its whole memory could end at once a process that is larger already."""
    code, output = end_of(UNKNOWN_SIZE)
    assert (code, output) == (-signal.SIGPROF, f"{256 * 2**20}\n")


def test_a_lower_limit_of_the_system_stays():
    work = "limit_process(cpu_s=60, more_bytes=2**41)\nbytes(256 * 2**20)"
    code, output = end_of(work, more_bytes=128 * 2**20)
    assert code == 1 and "MemoryError" in output


def test_the_file_limit_is_raised_to_the_hard_limit():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, before[1]))
        raise_file_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == before[1]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
