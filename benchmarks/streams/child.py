"""The command's end of the pipe to a child: a server under measurement, or clients. Standard library only."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from benchmarks.side import last_words

ROOT = Path(__file__).resolve().parents[2]
ANSWER_S = 60.0
READ_BYTES = 1 << 16


class ChildFailed(Exception):
    """A child could not be started, ended early, refused a request or took too long; the text is one line."""


class Child:
    """A Python module in a process of its own that obeys (see `control`). Use as a context manager.

    `settings` go to it as JSON; its errors and its log go to the file `log`.
    """

    def __init__(self, module: str, settings: Mapping[str, object], log: Path) -> None:
        self.name = module.rpartition(".")[2].removesuffix("_process")
        self._log = log
        self._rest = b""
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, json.dumps(settings)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
                start_new_session=True,  # Ctrl-C is the command's to handle
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    def ask(self, do: str, *, within_s: float = ANSWER_S, **request: object) -> dict[str, Any]:
        """Send a request and return the answer.

        Raises:
            ChildFailed: it answered with an error, has ended, or took longer than `within_s`.
        """
        self.send(do, **request)
        return self.receive(within_s)

    def send(self, do: str, **request: object) -> None:
        """Send a request; `receive` must follow."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps({"do": do, **request}).encode() + b"\n")
            self._process.stdin.flush()

    def receive(self, within_s: float = ANSWER_S) -> dict[str, Any]:
        """Return the answer to what was sent; raises like `ask`."""
        line = self._read_line(time.monotonic() + within_s, within_s)
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise ChildFailed(f"{self.name}: {answer['error']}")
        return answer

    def freeze(self) -> None:
        """Stop the process in its tracks, until `thaw`."""
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """Kill it and all that it has started. Idempotent."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()

    def _read_line(self, deadline: float, within_s: float) -> bytes:
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        with selectors.DefaultSelector() as selector:
            selector.register(descriptor, selectors.EVENT_READ)
            while b"\n" not in self._rest:
                if not selector.select(max(deadline - time.monotonic(), 0.0)):
                    raise ChildFailed(f"{self.name}: no answer within {within_s:g} s; {last_words(self._log)}")
                chunk = os.read(descriptor, READ_BYTES)
                if not chunk:
                    raise ChildFailed(f"{self.name}: ended early; its last words: {last_words(self._log)}")
                self._rest += chunk
        line, _, self._rest = self._rest.partition(b"\n")
        return line
