"""One client: it reads a file, edits it and answers; the server starts again; it goes on with its session."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from tools.agents import script
from tools.agents.clients import Setup
from tools.agents.closed_network import again
from tools.agents.scripted_server import PROMPTS, REQUESTS

ROOT = Path(__file__).parents[2]
PORT = 8000  # in a network of its own
URL = f"http://127.0.0.1:{PORT}"
FILE = "note.txt"
TEXT = "# Notes\n\n{}\nweather: rain\n"
BIRDS = ("heron", "stork", "crane")
"""The bird of the file, and those that the turns put there."""
HANG_S = 180.0
START_S = 60.0
MAX_SHOWN = 1500
PATH = "/usr/local/bin:/usr/bin:/bin"


@dataclass
class Outcome:
    """What a client has done.

    Attributes:
        problems: what was not as it must be, a sentence each.
        requests: the shapes of its requests, as `Recorder` writes them.
        num_tokens: the length of each prompt, in tokens.
    """

    problems: list[str] = field(default_factory=list)
    requests: list[dict[str, Any]] = field(default_factory=list)
    num_tokens: list[int] = field(default_factory=list)


def play(
    setup: Setup, program: Path, folder: Path, departures: Callable[[], list[str]], *, port: int = PORT
) -> Outcome:
    """Let a client do two turns in a clean home below `folder`, with a server that is started for each.

    `departures` returns the other hosts that it has asked for since the last call.

    Raises:
        RuntimeError: the server does not start.
    """
    home, work, log = (folder / name for name in ("home", "work", "log"))
    for each in (home, work, log):
        each.mkdir(parents=True)
    for name, text in setup.files.items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(text)
    (work / FILE).write_text(TEXT.format(script.line(BIRDS[0])))
    outcome = Outcome()
    for number, arguments in enumerate((setup.first, setup.further), 1):
        with serving(log, port):
            problems = _turn(number, [str(program), *arguments], work, _environment(setup, home))
        problems += [f"it asked for another host: {each}" for each in departures()]
        outcome.problems += [f"turn {number}: {problem}" for problem in problems]
        if problems:
            break
    if (log / REQUESTS).exists():
        outcome.requests = [*map(json.loads, (log / REQUESTS).read_text().splitlines())]
    outcome.num_tokens = [len(json.loads(file.read_text())) for file in sorted((log / PROMPTS).glob("*.json"))]
    outcome.problems += dict.fromkeys(problem for request in outcome.requests for problem in _refusals(request))
    outcome.problems += dict.fromkeys(_failures((log / "server.log").read_text()))
    if setup.has_socket and {request["method"] for request in outcome.requests} - {"FRAME", "CLOSE"}:
        outcome.problems.append("it has sent requests beside its WebSocket")
    return outcome


@contextlib.contextmanager
def serving(log: Path, port: int) -> Iterator[None]:
    """Serve the scripted model for the time of a block; its log, and those of its requests, go into a folder.

    Raises:
        RuntimeError: the server does not start.
    """
    with (log / "server.log").open("a+") as output:
        begin = output.tell()
        command = again("tools.agents.scripted_server", str(port), str(log))
        server = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=output)
        try:
            limit = time.monotonic() + START_S
            while "Ready: " not in (said := _text_from(output, begin)):
                if server.poll() is not None or time.monotonic() > limit:
                    raise RuntimeError(f"The server does not start:\n{said[-MAX_SHOWN:]}")
                time.sleep(0.1)
            yield
        finally:
            server.terminate()
            server.wait(START_S)


def _text_from(file: TextIO, begin: int) -> str:
    file.seek(begin)
    return file.read()


def _turn(number: int, command: list[str], work: Path, environment: dict[str, str]) -> list[str]:
    """Let a client do one turn; return what was wrong."""
    bird, file = BIRDS[number], work / FILE
    client = subprocess.Popen(
        [*command, script.question(str(file), bird)],
        cwd=work,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    )
    problems = []
    try:
        said, complained = client.communicate(timeout=HANG_S)
    except subprocess.TimeoutExpired:
        problems.append(f"it did not end within {HANG_S:.0f} s")
        os.killpg(client.pid, signal.SIGKILL)
        said, complained = client.communicate()
    (work.parent / f"turn-{number}.txt").write_text(f"{said}\n--- stderr\n{complained}")
    if client.returncode and not problems:
        problems.append(f"it ended with exit code {client.returncode}: {(complained or said)[-MAX_SHOWN:]}")
    if (text := file.read_text()) != TEXT.format(script.line(bird)):
        problems.append(f"the file was not edited, it is {text!r}")
    expected = script.report(BIRDS[: number + 1])
    if expected not in said:
        problems.append(f"it did not show {expected!r}, but {said[-MAX_SHOWN:]!r}")
    return problems


def _environment(setup: Setup, home: Path) -> dict[str, str]:
    """Return an environment that has nothing of ours."""
    return {"HOME": str(home), "PATH": PATH, "LANG": "C.UTF-8", "TERM": "dumb", **setup.variables}


def _failures(log: str) -> Iterator[str]:
    """Yield what a server's log says of failures."""
    for text in log.splitlines():
        if text.startswith("{") and (record := json.loads(text))["level"] in ("warning", "error"):
            yield f"the server says: {record['message']} {record.get('exception', '')[-MAX_SHOWN:]}"


def _refusals(request: dict[str, Any]) -> Iterator[str]:
    if request["method"] != "CLOSE" and request.get("status", 200) >= 400:
        yield f"{request['method']} {request['path']} was answered with {request['status']}: {request.get('error')}"
