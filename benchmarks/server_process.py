"""A server in a process of its own, for benchmarks that are its clients."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import orjson

from app.loadgen.answer import Answer
from app.loadgen.load import Request
from app.loadgen.target import Target
from benchmarks.api_client import ApiClient
from benchmarks.side import last_line

POLL_S = 0.01
END_S = 5.0


class ServerProcess:
    """A server that listens on a loopback address.

    Attributes:
        port: where.
        target: the same for clients.
    """

    def __init__(
        self, port: int, process: subprocess.Popen[str], log: Path | None = None, host: str = "127.0.0.1"
    ) -> None:
        self.port = port
        self.target = local_target(port, host=host)
        self._process, self._log = process, log

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    def client(self, timeout_s: float = 600.0, key: str | None = None) -> ApiClient:
        """Return a client, perhaps with a key."""
        return ApiClient(self.target._replace(key=key), timeout_s)

    async def wait_until_ready(self, within_s: float = 600.0) -> float:
        """Ask again and again until the model is loaded; return the seconds that the slowest answer took.

        Raises:
            RuntimeError: the process has ended, or it takes too long.
        """
        client, slowest, end = self.client(within_s), 0.0, time.monotonic() + within_s
        while self._process.poll() is None and time.monotonic() < end:
            with suppress(OSError):
                began_request = time.perf_counter()
                answer = await client.get("/readyz")
                slowest = max(slowest, time.perf_counter() - began_request)
                if answer.status == 200:
                    return slowest
            await asyncio.sleep(POLL_S)
        code = self._process.returncode
        why = f"is not ready after {within_s:g} s" if code is None else f"ended with code {code}"
        raise RuntimeError(f"the server {why}: {last_line(self._log) if self._log else 'it has no log'}")

    async def wait_for_token(self, path: str, fields: Mapping[str, Any]) -> None:
        """Ask for a stream, and hang up when its first text is there.

        Raises:
            RuntimeError: it has none.
        """
        answer = Answer(0.0, 0.0, time.perf_counter())
        await self.client().send(Request(0.0, self.target.post(path, orjson.dumps(fields)), 1), answer)
        if not answer.times:
            raise RuntimeError(f"the first answer is empty: {answer.error} {answer.message}")

    def end(self) -> list[str]:
        """Let the process end; return the lines that it has printed since it listened."""
        assert self._process.stdout is not None
        self._process.send_signal(signal.SIGTERM)
        return self._process.stdout.read().splitlines()

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process, if it runs."""
        self._process.send_signal(number)

    def exit_code(self, within_s: float = 0.0) -> int | None:
        """Return the exit code, negative for a signal's number; None if the process still runs after `within_s`."""
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(within_s)
        return None

    def terminate(self, within_s: float) -> float:
        """Send SIGTERM, and return after how many seconds the process has ended. Blocks.

        Raises:
            RuntimeError: it has not ended within `within_s`, or its exit code is not 0.
        """
        began = time.monotonic()
        self._process.send_signal(signal.SIGTERM)
        code = self.exit_code(within_s)
        if code is None:
            raise RuntimeError(f"SIGTERM did not end the server within {within_s:g} s")
        if code:
            raise RuntimeError(f"SIGTERM ended the server with exit code {code}, not 0")
        return time.monotonic() - began

    def processor_s(self) -> float:
        """Return the processor seconds that the process has used."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")

    def kill(self) -> None:
        """Send SIGKILL, and wait until the process has ended. Blocks."""
        self._process.kill()
        self._process.wait()

    def resident(self) -> int:
        """Return the bytes that are in memory now."""
        return self._memory("VmRSS")

    def peak(self) -> int:
        """Return the most bytes that were in memory since `reset_peak`."""
        return self._memory("VmHWM")

    def reset_peak(self) -> None:
        """Let the peak be what is in memory now."""
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")

    def _memory(self, field: str) -> int:
        found = re.search(rf"^{field}:\s+(\d+) kB", Path(f"/proc/{self.pid}/status").read_text(), re.MULTILINE)
        assert found is not None
        return int(found[1]) * 1024


def local_target(port: int, key: str | None = None, source: str | None = None, host: str = "127.0.0.1") -> Target:
    """Return a server on this machine, for a client with a key and an address of its own, or without."""
    authority = f"[{host}]" if ":" in host else host
    return Target(f"http://{authority}:{port}", host, port, "", host, None, key, source)


@contextmanager
def listening(
    *arguments: str,
    log: Path | None = None,
    environ: Mapping[str, str] | None = None,
    program: str = "app",
    is_log_read: bool = True,
) -> Iterator[ServerProcess]:
    """Run `quire serve` with these arguments on a free port, from when it listens to the end of the block.

    What it logs goes to `log`, or nowhere; or, if it is not to be read, into a pipe that nobody reads. `program` is the
    module that is run as `quire`.

    Raises:
        RuntimeError: it does not start.
    """
    command = [sys.executable, "-m", program, "serve", "--port", "0", *arguments]
    with (
        (Path(os.devnull) if log is None else log).open("ab") as file,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=file if is_log_read else subprocess.PIPE, text=True, env=environ
        ) as process,
    ):
        try:
            assert process.stdout is not None
            found = next(filter(None, (re.search(r"http://(\S+):(\d+)", line) for line in process.stdout)), None)
            if found is None:
                why = last_line(log) if log else "start it by hand to see why"
                raise RuntimeError(f"`quire serve {' '.join(arguments)}` did not start: {why}")
            yield ServerProcess(int(found[2]), process, log, found[1].strip("[]"))
        finally:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(END_S)
            process.kill()


@contextmanager
def serving(*arguments: str, is_log_read: bool = True, program: str = "app") -> Iterator[ServerProcess]:
    """Run `quire serve` as `listening` does, from when its model is loaded."""
    with listening(*arguments, is_log_read=is_log_read, program=program) as server:
        asyncio.run(server.wait_until_ready())
        yield server
