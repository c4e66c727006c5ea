"""Programs that are measured, each in a process of its own. Standard library only: peers bring their own Python.

The parent writes one request as a line of JSON and reads one answer; `serve` is the child's end of it. A program that
is not asked is stopped (SIGSTOP), all its processes with it, so that nothing of it runs while others are measured.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

ANSWER_LIMIT_S = 900.0
"""How long a program may take for one answer; loading a model and compiling it is one."""

LAST_WORDS_BYTES = 65536


class SideFailed(Exception):
    """A program could not be started, ended early, refused a request or took too long; the text is one line."""


class Side:
    """A program under measurement. Use as a context manager; its output goes to the file `log`.

    Raises:
        SideFailed: it cannot be started.
    """

    def __init__(self, command: Sequence[str], log: Path, environ: Mapping[str, str] | None = None) -> None:
        self._log = log
        try:
            with log.open("wb") as output:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=output,
                    text=True,
                    env={**os.environ, **(environ or {})},
                    start_new_session=True,  # its processes are stopped and ended as one group
                )
        except OSError as error:
            raise SideFailed(f"{command[0]}: {error.strerror}") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def ask(self, **request: object) -> dict[str, Any]:
        """Send a request and return the answer; the program runs only meanwhile.

        Raises:
            SideFailed: it answered with an error, has ended, or took longer than ANSWER_LIMIT_S.
        """
        self._signal(signal.SIGCONT)
        try:
            answer = self._exchange(json.dumps(request))
        finally:
            self._signal(signal.SIGSTOP)
        if "error" in answer:
            raise SideFailed(str(answer["error"]))
        return answer

    def close(self) -> None:
        """End the program and all its processes. Idempotent."""
        self._signal(signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()

    def _exchange(self, request: str) -> dict[str, Any]:
        pipe, answers = self._process.stdin, self._process.stdout
        assert pipe is not None
        assert answers is not None
        with suppress(BrokenPipeError):
            pipe.write(request + "\n")
            pipe.flush()
        with selectors.DefaultSelector() as selector:
            selector.register(answers, selectors.EVENT_READ)
            if not selector.select(ANSWER_LIMIT_S):
                raise SideFailed(f"no answer within {ANSWER_LIMIT_S:g} s")
        line = answers.readline()
        if not line:
            raise SideFailed(f"ended early: {last_words(self._log)} (see {self._log})")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)


def serve(answer: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Answer requests from standard input until it ends; whatever else is printed goes to standard error."""
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)
        for line in sys.stdin:
            try:
                found = answer(json.loads(line))
            except Exception as error:  # whatever a peer raises is the parent's to tell
                found = {"error": " ".join(f"{type(error).__name__}: {error}".split())[:500]}
            answers.write(json.dumps(found) + "\n")
            answers.flush()


def last_words(log: Path) -> str:
    """Return the last line of a log that says something."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - LAST_WORDS_BYTES))
        lines = [line.strip() for line in file.read().decode("utf-8", "replace").splitlines() if line.strip()]
    return lines[-1][:300] if lines else "without a word"
