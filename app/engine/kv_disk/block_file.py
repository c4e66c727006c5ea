"""The file of a stored block: which block it is, a checksum, then its keys and values.

    magic | CRC32 of all that follows | digest of the context | parent's hash | bytes of token ids | bytes of data
    token ids | data

The file's name is the hash of the block, which covers context, parent and token ids; here they are compared themselves.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from zlib import crc32

from app.engine.schedule.kv.prefix_cache import HASH_BYTES, BlockContent

_MAGIC = b"QuireKV1"
_HEADER = struct.Struct(f"<8sI16s{HASH_BYTES}sII")
_CRC = slice(8, 12)
_REST = 12  # from where the checksum counts
# Whatever somebody has put in the place of a file: no link is followed, and no pipe waited for.
_SAFELY = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NO_FILE = (errno.ELOOP, errno.ENXIO)  # how opening a link fails, and a socket


class BlockDamaged(ValueError):
    """A file is not whole, or not of the block that its name says."""


def num_file_bytes(content: BlockContent, num_data_bytes: int) -> int:
    """Return the size of a block's file."""
    return _HEADER.size + len(content.token_bytes) + num_data_bytes


def read_block(path: Path, content: BlockContent, into: memoryview) -> None:
    """Read the data of the block of `content`, whose size is that of `into`. Blocks.

    Raises:
        OSError: the file is not there, or cannot be read.
        BlockDamaged: it is not that block's, or not as it was written, or no file.
    """
    expected = _head(content, len(into))
    head = bytearray(len(expected))
    file = _opened(path)
    try:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode):
            raise BlockDamaged(f"{path.name} is no file")
        num_read = os.readv(file, [head, into])
    finally:
        os.close(file)
    if not found.st_size == num_read == len(head) + len(into):
        raise BlockDamaged(f"{path.name} has {found.st_size} bytes")
    checksum, head[_CRC] = bytes(head[_CRC]), bytes(4)
    if head != expected:
        raise BlockDamaged(f"{path.name} is of another block")
    if checksum != _checksum(head, into):
        raise BlockDamaged(f"{path.name} has another checksum")


def write_block(path: Path, content: BlockContent, data: memoryview) -> None:
    """Write a block; its file is there whole or not at all, also when the process is killed. Blocks.

    Raises:
        OSError: it cannot be written.
    """
    head = bytearray(_head(content, len(data)))
    head[_CRC] = _checksum(head, data)
    unfinished = path.with_suffix(UNFINISHED)
    try:
        file = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | _SAFELY, 0o600)
        try:
            num_written = os.writev(file, [head, data])
            while (rest := num_written - len(head)) < len(data):  # a call writes a part when the disk gets full
                num_written += os.write(file, data[max(rest, 0) :]) if rest >= 0 else os.write(file, head[rest:])
        finally:
            os.close(file)
        unfinished.replace(path)
    except OSError:
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)
        raise


UNFINISHED = ".part"
"""The suffix of a file that is being written."""


def _opened(path: Path) -> int:
    """Return the descriptor of a file for reading."""
    try:
        return os.open(path, os.O_RDONLY | _SAFELY)
    except OSError as error:
        if error.errno in _NO_FILE:
            raise BlockDamaged(f"{path.name} is a link or no file") from None
        raise


def _head(content: BlockContent, num_data_bytes: int) -> bytes:
    """Return header and token ids, with a checksum of 0."""
    context = blake2b(content.context, digest_size=16).digest()
    tokens = content.token_bytes
    parent = content.parent or bytes(HASH_BYTES)
    return _HEADER.pack(_MAGIC, 0, context, parent, len(tokens), num_data_bytes) + tokens


def _checksum(head: bytes | bytearray, data: memoryview) -> bytes:
    return crc32(data, crc32(memoryview(head)[_REST:])).to_bytes(4, "little")
