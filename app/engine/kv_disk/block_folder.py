"""A folder with blocks of a KV cache, a file each, named by their hashes; the least recently used go first.

Times of use are the files' times, so a later process knows them. Nothing is forced to the disk: what was written is
there after the process was killed, and a power cut may damage it, which the checksums show.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import stat
import time
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock

from app.contract.errors import CannotStart, ConfigurationError
from app.engine.kv_disk.block_file import UNFINISHED, BlockDamaged, num_file_bytes, read_block, write_block
from app.engine.schedule.kv.prefix_cache import HASH_BYTES, BlockContent
from app.runtime.private_folder import check_can_be_made, make_private_folder

_SALT = "salt"
_SALT_BYTES = 16
_SUFFIX = ".kv"


class FolderLocked(CannotStart):
    """Another process has the folder."""


class FolderFull(CannotStart):
    """The disk is full, so that not even an empty folder can be begun."""


class BlockFolder:
    """At most `max_bytes` of blocks in a folder that this process alone uses, until `close`. Any thread.

    Attributes:
        path: where it is.
        max_bytes: of all files together.
        salt: random bytes of this folder, for what it says of keys.
    """

    def __init__(self, path: Path, max_bytes: int) -> None:
        """Open the folder, or make one.

        Raises:
            ConfigurationError: it is a link or no folder, or belongs to others, or they may read it.
            FolderLocked: another process has it.
            FolderFull: its disk is full.
            CannotStart: it cannot be made or read.
        """
        self.path = path
        self.max_bytes = max_bytes
        self._lock = Lock()
        self._sizes: OrderedDict[bytes, int] = OrderedDict()  # by hash, the least recently used first
        self.num_bytes = 0
        self._salt_file = -1
        try:
            if not os.path.lexists(path):
                make_private_folder(path)
            _check(path)
            self._salt_file = _locked(path, os.O_RDWR | os.O_CREAT)
            self.salt = self._read_salt()
            self._read_names()
        except OSError as error:
            self.close()
            raise _unusable(path, error) from None

    def __len__(self) -> int:
        """Return how many blocks there are."""
        return len(self._sizes)

    def __contains__(self, block_hash: bytes) -> bool:
        """Return whether a block is there. Never blocks."""
        return block_hash in self._sizes

    def read(self, content: BlockContent, into: memoryview) -> None:
        """Read a block that is there; one that is damaged is deleted. Blocks.

        Raises:
            OSError, BlockDamaged: see `read_block`.
        """
        try:
            read_block(self._file(content.hash), content, into)
        except (BlockDamaged, FileNotFoundError):
            with suppress(OSError):  # the folder may not be written any more
                self._delete(content.hash)
            raise

    def write(self, content: BlockContent, data: memoryview) -> None:
        """Write a block, after the least recently used have made room for it. Blocks.

        Raises:
            OSError: it cannot be written.
        """
        num_bytes = num_file_bytes(content, len(data))
        if content.hash in self._sizes or num_bytes > self.max_bytes:
            return
        self._make_room(num_bytes)
        write_block(self._file(content.hash), content, data)
        with self._lock:
            self._sizes[content.hash] = num_bytes
            self.num_bytes += num_bytes

    def touch(self, hashes: Sequence[bytes]) -> None:
        """Note that blocks of a text were used, the first one last: without it the others are of no use. Blocks."""
        now = time.time_ns()
        for number, block_hash in enumerate(reversed(hashes)):
            if self._prefer(block_hash):
                with suppress(OSError):
                    os.utime(self._file(block_hash), ns=(now + number, now + number))

    def prefer(self, hashes: Sequence[bytes]) -> None:
        """Let blocks make room last, the first one after the others, for as long as this process has the folder. Never
        blocks.
        """
        for block_hash in reversed(hashes):
            self._prefer(block_hash)

    def close(self) -> None:
        """Let other processes have the folder. Idempotent."""
        if self._salt_file >= 0:
            os.close(self._salt_file)
            self._salt_file = -1

    def _prefer(self, block_hash: bytes) -> bool:
        """Let a block make room last; return whether it is there."""
        with self._lock:
            if block_hash not in self._sizes:
                return False
            self._sizes.move_to_end(block_hash)
            return True

    def _make_room(self, num_bytes: int) -> None:
        while True:
            with self._lock:
                if not self._sizes or self.num_bytes + num_bytes <= self.max_bytes:
                    return
                oldest = next(iter(self._sizes))
            self._delete(oldest)

    def _delete(self, block_hash: bytes) -> None:
        with suppress(FileNotFoundError):
            self._file(block_hash).unlink()
        with self._lock:  # behind it: what cannot be deleted counts further
            self.num_bytes -= self._sizes.pop(block_hash, 0)

    def _file(self, block_hash: bytes) -> Path:
        return self.path / f"{block_hash.hex()}{_SUFFIX}"

    def _read_salt(self) -> bytes:
        """Return the folder's salt; with a new one nothing that is there can be found, and it goes when it is old."""
        salt = os.pread(self._salt_file, _SALT_BYTES + 1, 0)
        if len(salt) != _SALT_BYTES:
            salt = secrets.token_bytes(_SALT_BYTES)
            os.ftruncate(self._salt_file, 0)
            os.pwrite(self._salt_file, salt, 0)
        return salt

    def _read_names(self) -> None:
        """List the blocks. Files that an end of the process has cut are deleted; others that are not ours stay."""
        found: list[tuple[int, bytes, int]] = []
        with os.scandir(self.path) as entries:
            for entry in entries:
                block_hash, suffix = _parsed(entry.name)
                if block_hash is None or not entry.is_file(follow_symlinks=False):
                    continue
                if suffix == UNFINISHED:
                    os.unlink(entry.path)
                elif suffix == _SUFFIX:
                    state = entry.stat(follow_symlinks=False)
                    found.append((state.st_mtime_ns, block_hash, state.st_size))
        for _, block_hash, size in sorted(found):
            self._sizes[block_hash] = size
        self.num_bytes = sum(self._sizes.values())
        self._make_room(0)


def _parsed(name: str) -> tuple[bytes | None, str]:
    """Return the hash in the name of a block's file, None in other names, and its suffix."""
    stem, suffix = os.path.splitext(name)
    try:
        block_hash = bytes.fromhex(stem)
    except ValueError:
        return None, suffix
    return block_hash if block_hash.hex() == stem and len(block_hash) == HASH_BYTES else None, suffix


def check_folder(path: Path) -> None:
    """Check that a server could use the folder, or make it; nothing is made.

    Raises:
        ConfigurationError, CannotStart: as `BlockFolder`.
    """
    try:
        if not os.path.lexists(path):
            check_can_be_made(path)
            return
        _check(path)
        with suppress(FileNotFoundError):
            os.close(_locked(path, os.O_RDWR))
    except OSError as error:
        raise _unusable(path, error) from None


def _locked(path: Path, flags: int) -> int:
    """Open the file of a folder's salt, and lock it for as long as it is open."""
    file = os.open(path / _SALT, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        raise FolderLocked(
            f"The KV cache on disk {path} is in use by another process. Stop that one, or give --kv-disk another path."
        ) from None
    return file


def _unusable(path: Path, error: OSError) -> CannotStart:
    kind = FolderFull if error.errno in (errno.ENOSPC, errno.EDQUOT) else CannotStart
    return kind(f"The KV cache on disk cannot use {path}: {error.strerror}. Give --kv-disk another path.")


def _check(path: Path) -> None:
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise ConfigurationError(
            f"{path} is a link or no folder. Give --kv-disk the path of a folder.", param="kv_disk"
        )
    if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise ConfigurationError(
            f"The folder {path} belongs to another user, or others may read it. Own it, and allow it to yourself alone "
            "(chmod 700).",
            param="kv_disk",
        )
