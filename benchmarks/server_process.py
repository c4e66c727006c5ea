"""A server in a process of its own, for benchmarks that ask it from outside."""

import http.client
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

POLL_S = 0.05
END_S = 5.0


class ServerProcess(NamedTuple):
    """Where it listens on 127.0.0.1, and which process it is."""

    port: int
    pid: int

    @property
    def url(self) -> str:
        """Where it is, without a slash at the end."""
        return f"http://127.0.0.1:{self.port}"

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


@contextmanager
def serving(*arguments: str) -> Iterator[ServerProcess]:
    """Run `quire serve` with these arguments on a free port, from when it is ready to the end of the block."""
    command = [sys.executable, "-m", "app", "serve", "--port", "0", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        try:
            found = next(filter(None, (re.search(r"http://[^:]+:(\d+)", line) for line in process.stdout)), None)
            assert found is not None, f"`quire serve {' '.join(arguments)}` has ended; start it by hand to see why"
            server = ServerProcess(int(found[1]), process.pid)
            while _status(server.port) != 200:
                time.sleep(POLL_S)
            yield server
        finally:
            process.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(END_S)
            process.kill()


def _status(port: int) -> int:
    """Return the status of /readyz."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status
    finally:
        connection.close()
