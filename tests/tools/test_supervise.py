"""What `make serve` runs: a server is started again when it has failed, gets signals once, and is never left alone."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import pytest

from app.client.client import connect
from tests.house.source import ROOT
from tests.loadgen.fakes import free_port
from tests.server.processes import HANG_S, serving
from tools.supervise import Backoff, ending_of

MESSAGES = [{"role": "user", "content": "What is Quire?"}]
COUNTED = "n=$(($(cat runs 2>/dev/null || echo 0) + 1)); echo $n > runs; "
"""Shell that counts the runs of a command in a file, and in `$n`."""
TELLS_SIGNALS = """
import os, signal, sys
taken = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1)
signal.pthread_sigmask(signal.SIG_BLOCK, taken)
print(os.getpid(), flush=True)
while (number := signal.sigwait(taken)) != signal.SIGUSR1:
    print(signal.Signals(number).name, flush=True)
"""


def supervisor(*command: str, cwd: Path | None = None, first_s: float = 0.0) -> subprocess.Popen[str]:
    """Start a supervisor of a command, whose first pause is that long."""
    program = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); from tools.supervise import Backoff, supervise; "
        f"sys.exit(supervise(sys.argv[1:], Backoff({first_s})))"
    )
    return subprocess.Popen(
        [sys.executable, "-c", program, *command],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    )


@contextlib.contextmanager
def ending(process: subprocess.Popen[str]) -> Iterator[tuple[IO[str], IO[str]]]:
    """Have the two outputs of a process for the time of a block; kill it at the end."""
    assert process.stdout is not None and process.stderr is not None
    with process.stdout, process.stderr:
        try:
            yield process.stdout, process.stderr
        finally:
            process.kill()
            process.wait(HANG_S)


def test_pauses_double_to_a_limit_and_begin_again_after_a_long_run():
    backoff = Backoff()
    assert [backoff.pause_after(59.0) for _ in range(7)] == [1, 2, 4, 8, 16, 30, 30]
    assert [backoff.pause_after(60.0), backoff.pause_after(0.0)] == [1, 2]


@pytest.mark.parametrize("status", [70, 75, *(-number for number in (signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT))])
def test_a_failure_that_another_start_may_help_is_told(status: int):
    said = ending_of(status)
    assert said is not None and (str(status) if status > 0 else signal.Signals(-status).name) in said


@pytest.mark.parametrize("status", [0, 1, 2, 130, -signal.SIGINT, -signal.SIGTERM])
def test_any_other_end_is_none_to_be_mended(status: int):
    assert ending_of(status) is None


@pytest.mark.parametrize(
    ("ends", "code", "runs"),
    [
        ("exit 70", 3, 3),
        ("exit 75", 3, 3),
        ("kill -9 $$", 3, 3),
        ("kill -SEGV $$", 3, 3),
        ("exit 0", 0, 1),
        ("exit 2", 2, 1),
        ("kill -TERM $$", 143, 1),
    ],
)
def test_a_server_is_started_again_after_a_failure_only(ends: str, code: int, runs: int, tmp_path: Path):
    process = supervisor("sh", "-c", f"{COUNTED} [ $n -ge 3 ] && exit 3; {ends}", cwd=tmp_path)
    with ending(process):
        _, said = process.communicate(timeout=HANG_S)
        assert (process.returncode, int((tmp_path / "runs").read_text())) == (code, runs)
        assert said.count("It is started again in 0 s") == runs - 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGQUIT])
def test_a_signal_to_all_comes_to_the_server_once_and_is_its_last(number: signal.Signals):
    """As a terminal sends Ctrl-C: to the group of the supervisor."""
    process = supervisor(sys.executable, "-c", f"{TELLS_SIGNALS}\nos.kill(os.getpid(), signal.SIGKILL)")
    with ending(process) as (told, said):
        pid = int(told.readline())
        os.killpg(process.pid, number)
        assert told.readline() == f"{number.name}\n"
        os.kill(pid, signal.SIGUSR1)
        assert told.read() == "", "the signal came twice, or the server was started again"
        assert (process.wait(HANG_S), said.read()) == (128 + signal.SIGKILL, "")


def test_a_terminal_that_is_closed_ends_nothing(tmp_path: Path):
    ends = f"[ $n -ge 2 ] && exit 3; exec {sys.executable} -c '{TELLS_SIGNALS}\nos.kill(os.getpid(), signal.SIGKILL)'"
    process = supervisor("sh", "-c", COUNTED + ends, cwd=tmp_path)
    with ending(process) as (told, said):
        pid = int(told.readline())
        os.killpg(process.pid, signal.SIGHUP)
        os.kill(pid, signal.SIGUSR1)
        assert (told.read(), process.wait(HANG_S)) == ("", 3)
        assert "was ended by SIGKILL" in said.read()


def test_a_second_signal_is_passed_on_too():
    process = supervisor(sys.executable, "-c", TELLS_SIGNALS)
    with ending(process) as (told, _):
        pid = int(told.readline())
        for _ in range(2):
            process.send_signal(signal.SIGTERM)
            assert told.readline() == "SIGTERM\n"
        os.kill(pid, signal.SIGUSR1)
        assert process.wait(HANG_S) == 0


def test_a_signal_in_a_pause_ends_it():
    process = supervisor("sh", "-c", "exit 75", first_s=HANG_S)
    with ending(process) as (_, said):
        assert "code 75" in said.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(HANG_S) == 0


def test_a_supervisor_that_is_killed_leaves_no_server():
    process = supervisor(sys.executable, "-c", "import signal; print(1, flush=True); signal.pause()")
    with ending(process) as (told, _):
        assert told.readline() == "1\n"
        process.kill()
        assert told.read() == "", "that is read when nobody can write any longer"


@pytest.mark.parametrize("has_journal", [True, False])
def test_make_serve_ends_with_its_server_after_ctrl_c(has_journal: bool, tmp_path: Path):
    """With a server that fails first, then tells which signals it gets."""
    journal, port = (str(tmp_path / "journal"), "8123") if has_journal else ("", "")
    (tmp_path / "python").symlink_to(sys.executable)
    fake = tmp_path / "quire"
    fake.write_text(
        f"#!/bin/sh\necho $*; cd {tmp_path}; {COUNTED} [ $n = 1 ] && kill -9 $$\n"
        f"exec {sys.executable} -c '{TELLS_SIGNALS}'\n"
    )
    fake.chmod(0o755)
    process = subprocess.Popen(
        ["make", "--old-file=setup", "serve", f"BIN={tmp_path}", f"JOURNAL={journal}", f"PORT={port}"],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if name != "MAKEFLAGS"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    )
    with ending(process) as (told, said):
        assert "The server was ended by SIGKILL" in said.readline()
        lines = [*itertools.takewhile(lambda line: not line.strip().isdigit(), told)]
        assert lines.count(f"serve --journal {journal} --port {port}\n" if has_journal else "serve\n") == 2
        assert any("recorded" in line for line in lines) == has_journal
        pid = child_of(child_of(process.pid))  # of make, and of the supervisor
        os.killpg(process.pid, signal.SIGINT)
        assert told.readline() == "SIGINT\n"
        os.kill(pid, signal.SIGUSR1)
        assert told.read() == ""
        process.wait(HANG_S)
        assert (tmp_path / "runs").read_text() == "2\n"


def child_of(pid: int) -> int:
    """The process that another has started."""
    (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(child)


async def read(url: str, kill: Callable[[], None] | None = None) -> str:
    """Read an answer through all connections that it takes; call `kill` once it has begun."""
    async with asyncio.timeout(HANG_S), connect(url, reconnect=True) as client:
        window = client.welcome["limits"]["window"]
        answer = await client.chat(MESSAGES, temperature=0, ignore_eos=True, max_tokens=window + 200)
        texts = aiter(answer)
        begun = await anext(texts)
        if kill is not None:
            kill()  # the server waits for credit, so the answer is not complete
        return begun + "".join([text async for text in texts])


def test_an_answer_goes_on_when_a_supervised_server_is_killed(tmp_path: Path):
    with serving() as server:
        server.wait_until_ready()
        undisturbed = asyncio.run(read(server.url))
    journal = str(tmp_path / "journal")
    with free_port() as port:
        process = supervisor(sys.executable, "-m", "app", "serve", "--port", str(port), "--journal", journal)
        with ending(process) as (told, said):
            assert any(line.startswith("Ready") for line in told)
            url = f"http://127.0.0.1:{port}"
            answer = asyncio.run(read(url, lambda: os.kill(child_of(process.pid), signal.SIGKILL)))
            assert answer == undisturbed
            process.send_signal(signal.SIGTERM)
            assert process.wait(HANG_S) == 0
            assert "The server was ended by SIGKILL. It is started again in 0 s" in said.read()
