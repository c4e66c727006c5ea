"""Commands at the edge: closed streams, Ctrl-C while modules are imported, no working folder, few addresses."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.cases import grid
from tests.house.source import ROOT

TIMEOUT_S = 120
COMMANDS = (
    ("plan", "guide"),
    ("models",),
    ("generate", "hi", "--max-tokens", "2", "--temperature", "0"),
    ("chat", "--url", "http://127.0.0.1:1"),
    ("serve", "--no-such-option"),
    ("pull",),
)
# Sends this process what Ctrl-C sends, as soon as a module is imported: at the same place on every machine.
INTERRUPT = """
import os, signal, sys
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "MODULE":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupt())
from app.__main__ import run
sys.exit(run())
"""
INTERRUPTED = INTERRUPT.replace("MODULE", "app.cli")


def run(*arguments: str, setup: Callable[[], object] | None = None, code: str | None = None, **options):
    """Run a command line in a process of its own."""
    program = ["-m", "app"] if code is None else ["-c", code]
    options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
    return subprocess.run(
        [sys.executable, *program, *arguments],
        preexec_fn=setup,
        timeout=TIMEOUT_S,
        env={**os.environ, "PYTHONPATH": str(ROOT), "QUIRE_NUM_KV_BLOCKS": "64"},
        **options,
    )


@cache
def unhindered(*arguments: str):
    """What a command line does with all its streams."""
    return run(*arguments)


def is_usual(arguments: tuple[str, ...], number: int) -> bool:
    """Every stream of the first command, and of each other the one that its place chooses."""
    place = COMMANDS.index(arguments)
    return not place or number == (1, 2, 1, 0, 1, 2)[place]


@pytest.mark.parametrize(("arguments", "number"), grid(is_usual, COMMANDS, (0, 1, 2)))
def test_a_closed_stream_is_as_one_that_leads_nowhere(arguments, number):
    expected = unhindered(*arguments)
    result = run(*arguments, setup=lambda: os.close(number))
    assert result.returncode == expected.returncode
    assert b"Traceback" not in result.stderr
    if number != 2:
        assert result.stderr.count(b"\n") == expected.stderr.count(b"\n")


def test_all_streams_may_be_closed():
    result = run("models", setup=lambda: os.closerange(0, 3))
    assert result.returncode == 0


def test_an_interrupt_while_modules_are_imported_ends_the_process_without_a_traceback():
    result = run("plan", "guide", code=INTERRUPTED)
    assert (result.returncode, result.stdout, result.stderr) == (-signal.SIGINT, b"", b"")


@pytest.mark.parametrize(
    "arguments", [("doctor",), ("warm", "guide"), ("bench", "throughput", "--peer", "none")], ids=" ".join
)
def test_an_interrupt_while_torch_is_imported_ends_the_process_at_once(arguments):
    result = run(*arguments, code=INTERRUPT.replace("MODULE", "torch._C"))
    assert (result.returncode, result.stderr) == (-signal.SIGINT, b"")


def test_an_interrupt_that_the_caller_ignores_stays_ignored():
    result = run("--version", code=INTERRUPTED, setup=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN))
    assert result.returncode == 0 and result.stdout.startswith(b"quire ")


@pytest.mark.parametrize(
    "arguments", [("serve", "--port", "0"), ("generate", "hi"), ("chat",), ("doctor",), ("warm", "guide")], ids=" ".join
)
def test_a_deleted_working_folder_is_one_line(tmp_path: Path, arguments):
    folder = tmp_path / "gone"
    folder.mkdir()

    def leave() -> None:
        os.chdir(folder)
        folder.rmdir()

    result = run(*arguments, setup=leave)
    folder.mkdir(exist_ok=True)
    assert (result.returncode, result.stdout) == (75, b"")
    assert result.stderr.startswith(b"quire: error: the working folder was deleted") and result.stderr.count(b"\n") == 1


@pytest.mark.parametrize(
    "arguments", [("serve", "--port", "0"), ("generate", "hi"), ("doctor",), ("bench", "throughput", "--peer", "none")]
)
def test_too_few_addresses_are_one_line(arguments):
    size = 700_000 * 1024
    result = run(*arguments, setup=lambda: resource.setrlimit(resource.RLIMIT_AS, (size, size)))
    assert (result.returncode, result.stdout) == (75, b"")
    assert b"this process may have 684 MiB of addresses" in result.stderr and result.stderr.count(b"\n") == 1


def test_a_character_that_the_terminal_cannot_show_is_a_question_mark():
    code = "import sys; from app.runtime.standard_streams import open_standard_streams as o; o(); print('caf\\u00e9')"
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        timeout=TIMEOUT_S,
    )
    assert result.stdout == b"caf?\n"
