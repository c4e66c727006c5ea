"""Downloads one file: continues what an earlier attempt left, and checks the digest before the file gets its name.

The part stands beside the target as `TARGET.incomplete`, and stays there when the download is interrupted. A lock on
the part keeps two processes from writing to it.
"""

from __future__ import annotations

import fcntl
import hashlib
import http.client
import os
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

from app.contract.errors import CannotStart, Unreachable

CHUNK_BYTES = 256 * 2**10
TIMEOUT_S = 30.0
MAX_FAILURES = 5  # in succession without one new byte
RETRY_S = 1.0
_PERMANENT = (401, 404, 410, 451)
_ERRNO = re.compile(r"^\[Errno -?\d+\] ")  # how HTTP clients quote the system
_PART_SUFFIX = ".incomplete"

Watch = Callable[[int], None]
"""Called with the number of bytes that are there."""
Open = Callable[[int], Any]
"""Opens the response of a file from an offset on, as `open_url` does; called again after a connection has broken."""


class Expected(NamedTuple):
    """What a file must be: its size, and its SHA-256 (64 digits) or its name as a git blob (40 digits)."""

    num_bytes: int
    digest: str

    def start(self) -> Any:
        """Return a hash object for the content."""
        if len(self.digest) == 64:
            return hashlib.sha256()
        return hashlib.sha1(b"blob %d\0" % self.num_bytes, usedforsecurity=False)


def open_url(
    url: str,
    offset: int = 0,
    headers: dict[str, str] | None = None,
    opener: urllib.request.OpenerDirector | None = None,
) -> Any:
    """Open a response from byte `offset` on; `headers` are not sent to where a redirect leads.

    Raises:
        OSError, http.client.HTTPException: there is no such file, or the server cannot be reached.
    """
    request = urllib.request.Request(url, headers={"Accept-Encoding": "identity"})
    for name, value in (headers or {}).items():
        request.add_unredirected_header(name, value)
    if offset:
        request.add_header("Range", f"bytes={offset}-")
    return (opener or urllib.request.build_opener()).open(request, timeout=TIMEOUT_S)


def part_bytes(target: Path) -> int:
    """Return the number of bytes of `target` that are there, of the whole file or of its part."""
    for file in (target, _part_of(target)):
        if file.exists():
            return file.stat().st_size
    return 0


def download(open_from: Open, target: Path, expected: Expected, watch: Watch) -> None:
    """Download `target`, if it is not there. Blocks; KeyboardInterrupt and failures keep the part.

    Raises:
        Unreachable: the server cannot be reached, or the connection breaks again and again.
        CannotStart: the file cannot be written, or what has arrived is another file; then its part is removed.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _locked(_part_of(target)) as stream:
            if target.exists():
                _part_of(target).unlink(missing_ok=True)
                return
            part = _Part(stream, expected)
            _complete(part, open_from, target.name, watch)
            if part.digest.hexdigest() != expected.digest:
                part.restart()
                raise CannotStart(f"What has arrived as {target.name} is not the expected file; download it again.")
            stream.flush()
            os.replace(_part_of(target), target)
    except OSError as error:
        raise CannotStart(f"Cannot write {target}: {error.strerror}.") from None


class _Part:
    """The bytes of a file that are there, and their hash so far."""

    def __init__(self, stream: IO[bytes], expected: Expected) -> None:
        self._stream = stream
        self.expected = expected
        self.digest = expected.start()
        self.num_bytes = 0
        stream.seek(0)
        while chunk := stream.read(CHUNK_BYTES):
            self.digest.update(chunk)
            self.num_bytes += len(chunk)
        if self.num_bytes > expected.num_bytes:
            self.restart()

    def append(self, chunk: bytes) -> None:
        """Add bytes at the end."""
        self._stream.write(chunk)
        self.digest.update(chunk)
        self.num_bytes += len(chunk)

    def restart(self) -> None:
        """Forget everything."""
        self._stream.truncate(0)
        self.digest = self.expected.start()
        self.num_bytes = 0


def _complete(part: _Part, open_from: Open, name: str, watch: Watch) -> None:
    failures = 0
    watch(part.num_bytes)
    while part.num_bytes < part.expected.num_bytes:
        before, reason = part.num_bytes, "the connection ended too early"
        try:
            for chunk in _chunks(open_from, part):
                part.append(chunk)
                watch(part.num_bytes)
        except _Broken as error:
            reason = str(error)
            if error.is_permanent:
                raise Unreachable(f"{name} cannot be downloaded: {reason}.") from None
        failures = 0 if part.num_bytes > before else failures + 1
        if failures > MAX_FAILURES:
            raise Unreachable(f"{name} cannot be downloaded: {reason}. What has arrived is kept.")
        time.sleep(RETRY_S * failures)


class _Broken(Exception):
    """The network failed."""

    def __init__(self, error: Exception) -> None:
        self.is_permanent = isinstance(error, urllib.error.HTTPError) and error.code in _PERMANENT
        super().__init__(reason_of(error))


def reason_of(error: BaseException) -> str:
    """Return the reason of a failed request in a few words."""
    if isinstance(error, urllib.error.HTTPError):
        return f"HTTP {error.code} {error.reason}"
    if isinstance(error, urllib.error.URLError) and isinstance(error.reason, Exception):
        return reason_of(error.reason)
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    lines = _ERRNO.sub("", str(error)).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__


def _chunks(open_from: Open, part: _Part) -> Iterator[bytes]:
    """Yield what follows the part; if the server sends the whole file instead, begin again."""
    try:
        with open_from(part.num_bytes) as response:
            if part.num_bytes and getattr(response, "status", None) != 206:
                part.restart()
            while chunk := response.read(CHUNK_BYTES):
                yield chunk
    except (OSError, http.client.HTTPException) as error:
        raise _Broken(error) from None


@contextmanager
def _locked(part: Path) -> Iterator[IO[bytes]]:
    """Open a part for writing at its end, when no other process does."""
    while True:
        with part.open("a+b") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            # Another process may have completed and renamed the file that was opened here.
            if part.exists() and os.fstat(stream.fileno()).st_ino == part.stat().st_ino:
                yield stream
                return


def _part_of(target: Path) -> Path:
    return target.with_name(target.name + _PART_SUFFIX)
