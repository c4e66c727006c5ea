"""Runs a section in processes of its own: a crash, a hang or an error ends one row, and other figures are kept.

The rows share a process until one fails; then a new process continues with the rest. A row that failed after others is
tried once more in a new process. No torch here: the GPU belongs to one process at a time.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.gpu.events import MAX_SAID, EventReader
from benchmarks.gpu.figures import Figure, SectionResult
from benchmarks.gpu.sections import Row, Section
from benchmarks.side import last_line

POLL_S = 0.1
GONE_S = 3.0  # for the last processes of a killed group to give their memory back
SAID_LINES = 25
NO_TIME = "no time was left"

Say = Callable[[str], None]
Command = Callable[[Section, Sequence[str], Path, float], Sequence[str]]
"""Makes the command line for some rows of a section, with the file of events and the seconds left."""


class Group:
    """A process group with its output in a file; ended as one."""

    def __init__(self, command: Sequence[str], log: Path, environ: dict[str, str]) -> None:
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environ, start_new_session=True
            )

    @property
    def code(self) -> int | None:
        """The exit code, None while it runs."""
        return self._process.poll()

    def end(self) -> None:
        """Kill the rest of the process group and wait for its end. Idempotent."""
        deadline = time.monotonic() + GONE_S
        with suppress(ProcessLookupError, PermissionError):
            while time.monotonic() < deadline:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.poll()
                time.sleep(0.02)
        self._process.wait()


@dataclass(slots=True)
class Attempt:
    """What one process came to: which rows it took up, how they ended, and why it was over."""

    since: float  # when the row under way began, or what is before the next one
    begun: list[str] = field(default_factory=list)
    done: set[str] = field(default_factory=set)
    current: str | None = None  # the row under way
    failures: dict[str, str] = field(default_factory=dict)
    final: set[str] = field(default_factory=set)  # failed rows that are not tried once more
    is_over: bool = False  # no time is left for the section


@dataclass(slots=True)
class SectionRun:
    """Runs the rows of one section, for at most `seconds`; calls `say` with lines of progress."""

    section: Section
    command: Command
    folder: Path
    seconds: float
    environ: dict[str, str]
    say: Say
    result: SectionResult = field(init=False)  # so far; kept if the run is interrupted

    def __post_init__(self) -> None:
        self.result = SectionResult(self.section.name)

    def run(self) -> SectionResult:
        """Run the section and return its figures; never raises for what a section does."""
        began = time.monotonic()
        try:
            self._run(began + self.seconds)
        finally:
            self.result.seconds = time.monotonic() - began
        return self.result

    def _run(self, deadline: float) -> None:
        result, rows, again = self.result, list(self.section.rows), dict[str, str]()
        log = self.folder / f"{self.section.name}.log"
        number = 0
        while rows:
            number += 1
            attempt = self._attempt(rows, deadline, self.folder / f"{self.section.name}-{number}.jsonl", log)
            for name, said in attempt.failures.items():
                if attempt.begun[:1] == [name] or name in again or name in attempt.final:
                    result.failures[name] = said
                    attempt.done.add(name)
                    continue
                again[name] = said
                self.say(f"{self.section.name} {name}: once more, in a process of its own")
            rows = [row for row in rows if row.name not in attempt.done]
            if attempt.is_over:
                result.failures.update({row.name: again[row.name] for row in rows if row.name in again})
                result.left_out.update({row.name: NO_TIME for row in rows if row.name not in again})
                break
            if not attempt.begun:
                result.failures.update({row.name: f"the process ended at once: {last_line(log)}" for row in rows})
                break

    def _attempt(self, rows: Sequence[Row], deadline: float, events: Path, log: Path) -> Attempt:
        """Run one process until it ends, a row exceeds its cap, or the section's time is over."""
        caps, reader = {row.name: row.cap_s for row in rows}, EventReader(events)
        names = [row.name for row in rows]
        size = log.stat().st_size if log.exists() else 0
        process = Group(self.command(self.section, names, events, deadline - time.monotonic()), log, self.environ)
        attempt = Attempt(time.monotonic())
        try:
            while True:
                code, now = process.code, time.monotonic()  # before the events: none comes after the end
                for event in reader.read():
                    self._take(event, attempt, now)
                name = attempt.current or next((name for name in names if name not in attempt.begun), names[-1])
                if code is not None:
                    if attempt.current is not None:
                        attempt.failures[name] = f"the process ended with code {code}: {_tail(log, size)}"
                    break
                if now > deadline:
                    attempt.is_over = True
                    break
                if now - attempt.since > caps[name]:
                    attempt.final.add(name)
                    attempt.begun = attempt.begun or [name]
                    attempt.failures[name] = f"ended at its cap of {caps[name]:g} s: {_tail(log, size)}"
                    break
                time.sleep(POLL_S)
        finally:
            process.end()
            for event in reader.read():
                self._take(event, attempt, time.monotonic())
            reader.close()
        for name, said in attempt.failures.items():
            self.say(f"{self.section.name} {name} FAILED: {said}")
        return attempt

    def _take(self, event: dict[str, Any], attempt: Attempt, now: float) -> None:
        row, result = str(event["row"]), self.result
        if event["event"] != "figure":
            attempt.since, attempt.current = now, None
        match event["event"]:
            case "begin":
                attempt.begun.append(row)
                attempt.current = row
                self.say(f"{self.section.name} {row} ...")
            case "figure":
                figure = Figure.from_json(event["figure"])
                # A row that is tried once more measures again what it had.
                result.figures = [each for each in result.figures if each.name != figure.name] + [figure]
                self.say(f"{self.section.name} {figure.name}: {figure.median:,.4g} {figure.unit}")
            case "end":
                attempt.done.add(row)
            case "failed":
                if event["is_final"]:
                    attempt.done.add(row)
                    result.left_out[row] = str(event["said"])
                    self.say(f"{self.section.name} {row}: left out, {event['said']}")
                else:
                    attempt.failures[row] = str(event["said"])


def run_together(
    section: Section, command: Command, folder: Path, seconds: float, environ: dict[str, str], say: Say
) -> SectionResult:
    """Run each row in a process of its own, all at once; those that are not done after `seconds` are ended."""
    began, result = time.monotonic(), SectionResult(section.name)
    running: dict[str, tuple[Group, EventReader]] = {}
    log = folder / f"{section.name}.log"
    log.touch()
    try:
        for number, row in enumerate(section.rows):
            events = folder / f"{section.name}-{number}.jsonl"
            reader = EventReader(events)
            running[row.name] = (Group(command(section, [row.name], events, seconds), log, environ), reader)
        while running and time.monotonic() - began < seconds:
            for name, (process, reader) in list(running.items()):
                if process.code is not None:
                    _take_all(name, process.code, reader, log, result, say)
                    del running[name]
            time.sleep(POLL_S)
    finally:
        for process, reader in running.values():
            process.end()
            reader.close()
    result.failures.update(dict.fromkeys(running, f"not done after {seconds:.0f} s"))
    result.seconds = time.monotonic() - began
    return result


def _take_all(name: str, code: int, reader: EventReader, log: Path, result: SectionResult, say: Say) -> None:
    for event in reader.read():
        if event["event"] == "figure":
            result.figures.append(Figure.from_json(event["figure"]))
        elif event["event"] == "failed":
            result.failures[name] = str(event["said"])
    reader.close()
    if code and name not in result.failures:
        result.failures[name] = f"the process ended with code {code}: {_tail(log, 0)}"
    say(f"{result.name} {name}: {'FAILED: ' + result.failures[name] if name in result.failures else 'done'}")


def _tail(log: Path, begin: int) -> str:
    """Return the last lines of a log from a byte on."""
    with log.open("rb") as file:
        file.seek(begin)
        lines = file.read().decode("utf-8", "replace").splitlines()
    return "\n".join(lines[-SAID_LINES:])[-MAX_SAID:] or "no output"
