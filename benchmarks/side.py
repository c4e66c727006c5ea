"""Programs that are measured or that measure, each in a process of its own.

Standard library only: peers bring their own Python. The parent writes one request as a line of JSON and reads one
answer; `serve` is the child's end of it (`streams/control.py` is another one, for an event loop).
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

ROOT = Path(__file__).resolve().parents[1]
ANSWER_LIMIT_S = 900.0
"""How long a program may take for one answer; loading a model and compiling it is one."""

LAST_LINE_BYTES = READ_BYTES = 1 << 16


class SideFailed(Exception):
    """A program could not be started, ended early, answered with an error or took too long; the text is one line."""


class Program:
    """A program that answers. Use as a context manager; its output goes to the file `log`, `name` begins its errors.

    Attributes:
        limit_s: how long it may take for one answer.

    Raises:
        SideFailed: it cannot be started.
    """

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        environ: Mapping[str, str] | None = None,
        name: str = "",
        limit_s: float = ANSWER_LIMIT_S,
    ) -> None:
        self.name = name
        self.limit_s = limit_s
        self._log = log
        self._rest = b""
        try:
            with log.open("wb") as output:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=output,
                    env={**os.environ, **(environ or {})},
                    start_new_session=True,  # its processes are stopped and ended as one group; Ctrl-C is the parent's
                )
        except OSError as error:
            raise SideFailed(f"{command[0]}: {error.strerror}") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    def ask(self, do: str, **request: object) -> dict[str, Any]:
        """Send a request and return the answer.

        Raises:
            SideFailed: it answered with an error, has ended, or took longer than `limit_s`.
        """
        self.send(do, **request)
        return self.receive()

    def send(self, do: str, **request: object) -> None:
        """Send a request; `receive` must follow."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps({"do": do, **request}).encode() + b"\n")
            self._process.stdin.flush()

    def receive(self) -> dict[str, Any]:
        """Return the answer to what was sent; raises like `ask`."""
        answer: dict[str, Any] = json.loads(self._read_line())
        if "error" in answer:
            raise self._failed(str(answer["error"]))
        return answer

    def stop(self) -> None:
        """Stop the program and all its processes with SIGSTOP."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a stopped program continue."""
        self._signal(signal.SIGCONT)

    def close(self) -> None:
        """End the program and all its processes. Idempotent."""
        self._signal(signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()

    def _read_line(self) -> bytes:
        assert self._process.stdout is not None
        descriptor, deadline = self._process.stdout.fileno(), time.monotonic() + self.limit_s
        with selectors.DefaultSelector() as selector:
            selector.register(descriptor, selectors.EVENT_READ)
            while b"\n" not in self._rest:
                if not selector.select(max(deadline - time.monotonic(), 0.0)):
                    raise self._failed(f"no answer within {self.limit_s:g} s; {last_line(self._log)}")
                if not (piece := os.read(descriptor, READ_BYTES)):
                    raise self._failed(f"ended early: {last_line(self._log)} (see {self._log})")
                self._rest += piece
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def _failed(self, why: str) -> SideFailed:
        return SideFailed(f"{self.name}: {why}" if self.name else why)

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)


class Side(Program):
    """A program that is stopped between requests, so that it does not run while others are measured."""

    def ask(self, do: str, **request: object) -> dict[str, Any]:
        self.resume()
        try:
            return super().ask(do, **request)
        finally:
            self.stop()


def with_checkout() -> dict[str, str]:
    """Return an environment in which a program finds this checkout from any folder."""
    return {"PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])}


def serve(answer: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Answer requests from standard input until it ends; other output goes to standard error."""
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)
        for line in sys.stdin:
            try:
                found = answer(json.loads(line))
            except Exception as error:  # the parent reports any error of a peer
                found = {"error": " ".join(f"{type(error).__name__}: {error}".split())[:500]}
            answers.write(json.dumps(found) + "\n")
            answers.flush()


def last_line(log: Path) -> str:
    """Return the last line of a log that is not empty."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - LAST_LINE_BYTES))
        lines = [line.strip() for line in file.read().decode("utf-8", "replace").splitlines() if line.strip()]
    return lines[-1][:300] if lines else "no output"
