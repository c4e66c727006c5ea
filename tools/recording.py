"""Records how an answer goes on when its server is killed: `python -m tools.recording [MODEL]`, or `make recording`.

`make serve` runs in one terminal, a client in another, and in a third one the server is killed with SIGKILL while the
client reads. docs/images/killed.svg shows what was written there, and when; nothing is drawn unless the answer is, byte
for byte, the one without the kill.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import os
import signal
import sys
import tempfile
import time
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import Callable, Mapping
from pathlib import Path

from tools.recording_picture import Piece, draw

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs/images/killed.svg"
DESCRIPTION = (
    "Three terminals: a client that reads an answer, one in which the server is killed with kill -9 in the middle of "
    "that answer, and the server, which starts again; then the answer goes on where it was."
)
SERVER, KILLER, CLIENT = "the server", "another terminal", "a client"
ROWS = {CLIENT: 27, KILLER: 1, SERVER: 9}
PROGRAM = """\
import asyncio
from app.client.client import connect

async def ask(question):
    async with connect("http://127.0.0.1:8000", reconnect=True) as client:
        messages = [{"role": "user", "content": question}]
        answer = await client.chat(messages, temperature=0)
        async for text in answer:
            print(text, end="", flush=True)

asyncio.run(ask("Why is the sky blue?"))
"""
NUM_CHARACTERS = 400
"""How much of the answer the client has when the server is killed."""
LEAD_S = 1.5
"""How long before the client starts the picture begins."""
HANG_S = 600.0


class CannotRecord(Exception):
    """There is nothing to draw."""


class Terminal:
    """Runs commands one after another, and adds to `pieces` what is typed and written.

    Attributes:
        text: what the commands have written.
        process: that of the last command.
    """

    def __init__(self, title: str, pieces: list[Piece], folder: Path, environment: Mapping[str, str]) -> None:
        self.text = ""
        self.process: Process
        self._title = title
        self._pieces = pieces
        self._folder = folder
        self._environment = environment
        self._has_written = asyncio.Event()

    async def run(self, command: str) -> None:
        """Run a command of the shell to its end."""
        self._pieces.append(Piece(self._title, time.monotonic(), f"$ {command}\n", is_typed=True))
        self.process = await asyncio.create_subprocess_exec(
            "sh", "-c", command, cwd=self._folder, env=self._environment, stdout=PIPE, stderr=STDOUT, process_group=0
        )
        try:
            await self._read(self.process)
        finally:
            self.stop()
            await self.process.wait()

    def stop(self) -> None:
        """End what the command has started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGTERM)

    async def until(self, condition: Callable[[str], bool]) -> None:
        """Wait until the text is such."""
        while not condition(self.text):
            self._has_written.clear()
            await self._has_written.wait()

    async def _read(self, process: Process) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")()
        assert process.stdout is not None
        while data := await process.stdout.read(4096):
            text = decoder.decode(data)
            self._pieces.append(Piece(self._title, time.monotonic(), text))
            self.text += text
            self._has_written.set()


async def record(model: str, folder: Path) -> list[Piece]:
    """Return the pieces of three terminals; the journal and the program of the client are in the folder.

    Raises:
        CannotRecord: the server does not start, or the answer is not the one without the kill.
    """
    (folder / "ask.py").write_text(PROGRAM, encoding="utf-8")
    pieces: list[Piece] = []
    environment = _environment(folder)
    server = Terminal(SERVER, pieces, ROOT, environment)
    client, killer = (Terminal(title, pieces, folder, environment) for title in (CLIENT, KILLER))
    undisturbed = Terminal("", [], folder, environment)
    running = asyncio.create_task(server.run(f"QUIRE_MODEL={model} make serve"))
    try:
        await server.until(lambda text: "Ready: " in text or "started again" in text)
        if "started again" in server.text:
            raise CannotRecord(f"The server does not start:\n{server.text}")
        began_s = time.monotonic() - LEAD_S
        await client.run("cat ask.py")
        num_before = len(client.text)
        reading = asyncio.create_task(client.run("python ask.py"))
        await client.until(lambda text: len(text) - num_before > NUM_CHARACTERS)
        await killer.run(f"kill -9 {_last_child(server.process.pid)}")
        await reading
        num_pieces = len(pieces)
        await undisturbed.run("python ask.py")
    finally:
        server.stop()
        await running
    answer = client.text[num_before:]
    if answer != undisturbed.text:
        raise CannotRecord(f"The answers differ:\n{answer}\n\nWithout the kill:\n{undisturbed.text}")
    if "SIGKILL" not in server.text:
        raise CannotRecord("The answer had ended before the kill.")
    return [Piece(one.terminal, max(0.0, one.time_s - began_s), one.text, one.is_typed) for one in pieces[:num_pieces]]


def _environment(folder: Path) -> dict[str, str]:
    """Return the variables of the terminals: those of this process, but for what `make` adds."""
    own = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{own['PATH']}"
    return own | {
        "PATH": path,
        "PYTHONPATH": str(ROOT),
        "XDG_STATE_HOME": str(folder),
        "QUIRE_LOG_FORMAT": "text",  # as in a terminal
    }


def _last_child(pid: int) -> int:
    """Return the child of a process, or its child, and so on: of `make` the supervisor, of that the server."""
    while children := Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split():
        pid = int(children[0])
    return pid


async def main() -> int:
    """Record, and draw the picture."""
    model = sys.argv[1] if len(sys.argv) > 1 else "smollm2"
    with tempfile.TemporaryDirectory(prefix="quire-") as folder:
        async with asyncio.timeout(HANG_S):
            pieces = await record(model, Path(folder))
    PICTURE.write_text(draw(ROWS, pieces, DESCRIPTION), encoding="utf-8")
    print(PICTURE.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(asyncio.run(main()))
    except CannotRecord as error:
        sys.exit(str(error))
