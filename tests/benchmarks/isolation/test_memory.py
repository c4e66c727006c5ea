"""The memory of a process and its children, without the largest mappings."""

import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from benchmarks.isolation.memory import STEP_BYTES, Growth, resident_of_tree, tree
from tests.text.grammar.processes import wait_until

MIB = 1 << 20
# Takes 40 MiB for each line "take", and gives back what it took last for each other one; first it starts a child.
HOLDER = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
print(child.pid, flush=True)
held = []
for line in sys.stdin:
    if line == "take\\n":
        import mmap
        held.append(mmap.mmap(-1, 40 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
        held[-1].write(b"x" * (40 << 20))
    else:
        held.pop().close()
    print("done", flush=True)
"""


class Holder:
    """A process with a child, that holds as much memory as it is told."""

    def __init__(self, pid: int, child: int, commands: IO[str], answers: IO[str]) -> None:
        self.pid, self.child = pid, child
        self._commands, self._answers = commands, answers

    def tell(self, command: str) -> None:
        """Have it take or give back 40 MiB."""
        self._commands.write(f"{command}\n")
        self._commands.flush()
        assert self._answers.readline() == "done\n"


@contextmanager
def holder() -> Iterator[Holder]:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        yield Holder(process.pid, int(process.stdout.readline()), process.stdin, process.stdout)
        process.stdin.close()


def test_children_are_counted():
    with holder() as process:
        assert list(tree(process.pid)) == [process.pid, process.child]
        wait_until(lambda: resident_of_tree(process.child) > MIB)  # it has begun
        assert resident_of_tree(process.pid) > resident_of_tree(process.child)


def test_a_process_that_has_ended_has_no_memory():
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
        assert resident_of_tree(process.pid) == 0


def test_the_peak_stays_when_memory_is_given_back():
    with holder() as process:
        growth = Growth(process.pid, 1 << 30)
        process.tell("take")
        assert 40 * MIB <= growth.observe() < 60 * MIB
        process.tell("give back")
        assert growth.now() < 20 * MIB
        assert growth.observe() >= 40 * MIB


def test_large_mappings_are_not_counted():
    with holder() as process:
        growth = Growth(process.pid, 40 * MIB)
        process.tell("take")
        assert growth.observe() < STEP_BYTES
        assert growth.now() < STEP_BYTES


def test_this_process_can_be_read():
    with mmap.mmap(-1, 30 * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as held:
        before = resident_of_tree(os.getpid())
        held.write(b"x" * 30 * MIB)
        assert resident_of_tree(os.getpid()) > before + 20 * MIB
