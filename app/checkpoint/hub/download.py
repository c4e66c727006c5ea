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
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple

from app.contract.errors import CannotStart, Unreachable

CHUNK_BYTES = 256 * 2**10
TIMEOUT_S = 30.0
MAX_FAILURES = 5  # in succession without one new byte
RETRY_S = 1.0
_LOOK_S = 0.1
_PERMANENT = (401, 404, 410, 451)
_ERRNO = re.compile(r"^\[Errno -?\d+\] ")  # how HTTP clients quote the system
_PART_SUFFIX = ".incomplete"

Watch = Callable[[int], None]
"""Called with the number of bytes that are there."""
Open = Callable[[int], Any]
"""Opens the response of a file from an offset on, as `open_url` does; called again after a connection has broken."""


class Expected(NamedTuple):
    """The size that a file must have, and its SHA-256 (64 digits) or its name as a git blob (40 digits)."""

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
    for file in (target, part_of(target)):
        with suppress(FileNotFoundError):
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
        with locked_part(target, watch) as stream:
            if target.exists():
                part_of(target).unlink(missing_ok=True)
                return
            part = _Part(stream, expected)
            _complete(part, open_from, target.name, watch)
            if part.digest.hexdigest() != expected.digest:
                part.restart()
                raise CannotStart(f"What has arrived as {target.name} is not the expected file; download it again.")
            stream.flush()
            os.replace(part_of(target), target)
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
        _pause(RETRY_S * failures, partial(watch, part.num_bytes))


def _pause(seconds: float, look: Callable[[], None]) -> None:
    """Wait; `look` is called all the time and may raise to give up."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        time.sleep(min(left, _LOOK_S))
        look()


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
    """Yield what follows the part, no further than a chunk past its end; a whole file instead begins it again."""
    try:
        with open_from(part.num_bytes) as response:
            if part.num_bytes and getattr(response, "status", None) != 206:
                part.restart()
            while part.num_bytes <= part.expected.num_bytes and (chunk := response.read(CHUNK_BYTES)):
                yield chunk
    except (OSError, http.client.HTTPException) as error:
        raise _Broken(error) from None


@contextmanager
def locked_part(target: Path, watch: Watch) -> Iterator[IO[bytes]]:
    """Open the part of `target` for writing at its end, when no other thread or process does; an empty one is removed.

    Until then `watch` gets the size of the part, and may raise to give up.

    Raises:
        OSError: the folder cannot be written.
    """
    part = part_of(target)
    while True:
        with part.open("a+b") as stream:
            while not _try_lock(stream):
                watch(os.fstat(stream.fileno()).st_size)
                time.sleep(_LOOK_S)
            # Another process may have completed and renamed the file that was opened here.
            if _is_at(stream, part):
                try:
                    yield stream
                finally:
                    stream.flush()
                    if os.fstat(stream.fileno()).st_size == 0:
                        part.unlink(missing_ok=True)  # nothing has arrived
                return


def _is_at(stream: IO[bytes], path: Path) -> bool:
    """Return whether an open file still has this path."""
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(stream.fileno()), path.stat())
    return False


def _try_lock(stream: IO[bytes]) -> bool:
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def part_of(target: Path) -> Path:
    """Return where the part of a file is."""
    return target.with_name(target.name + _PART_SUFFIX)
