"""Reads the header of one GGUF file: its metadata, and the type, shape and place of each tensor. Without torch.

A file has: magic, version, numbers of tensors and keys; the keys with their values; the tensors; then, at the next
multiple of `general.alignment`, the data. Nothing in it is believed: numbers have limits, and are compared with the
bytes that are left before memory is allocated for what they announce.
"""

from __future__ import annotations

import hashlib
import math
import struct
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn, Protocol

from app.checkpoint.checkpoint_folder import LFS_ADVICE, LFS_POINTER, rejected
from app.checkpoint.file_state import FileState
from app.checkpoint.stored_tensor import StoredTensor
from app.checkpoint.tensor_types import ADVICE, TENSOR_TYPES, TensorType
from app.contract.errors import ModelRefused

Value = int | float | bool | str | tuple[int, ...] | tuple[float, ...] | tuple[bool, ...] | tuple[str, ...]
"""A value of the metadata; an array is a tuple."""

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MIN_FILE_BYTES = 24
MAX_HEADER_BYTES = 2**28
MAX_TENSORS, MAX_KEYS = 2**16, 2**12
MAX_STRING_BYTES = 2**20
MAX_KEY_BYTES, MAX_NAME_BYTES = 255, 63
MAX_ARRAY = 2**21
MAX_ELEMENTS = 2**22  # of all arrays together: a string of two bytes takes sixty in memory
MAX_DIMENSIONS, MAX_WEIGHTS = 4, 2**48
MAX_ALIGNMENT = 2**16
_CHUNK_BYTES = 2**20
_LENGTH = struct.Struct("<Q")
_STRING, _ARRAY = 8, 9
# Type of a value: struct's letter.
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


class Stream(Protocol):
    """A stream that a header is read from."""

    def read(self, size: int, /) -> bytes:
        """Read at most `size` bytes; fewer only at the end."""


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """The header of one file; `digest` is a hash of its bytes, `state` that of the file, if it is on this machine."""

    file: Path
    fields: dict[str, Value]
    tensors: dict[str, StoredTensor]
    digest: bytes
    state: FileState | None = None


def begins_as_gguf(file: Path) -> bool:
    """Return whether a file begins as GGUF files do, whatever its name is. Blocks.

    Raises:
        OSError: it cannot be read.
    """
    with file.open("rb") as stream:
        return stream.read(len(MAGIC)) == MAGIC


def read_header(file: Path) -> GgufHeader:
    """Read and check the header of `file`. Blocks.

    Raises:
        ModelRefused: the file is not a GGUF file, is damaged, or was written for computers with another byte order.
    """
    try:
        if not file.is_file():  # also a pipe, which would block
            raise rejected(f"{file} is not a regular file.")
        with file.open("rb") as stream:
            state = FileState.of(stream)
            return replace(read_header_from(stream, file, state.num_bytes), state=state)
    except OSError as error:
        raise rejected(f"Cannot read {file}: {error.strerror}.") from None


def read_header_from(stream: Stream, file: Path, size: int) -> GgufHeader:
    """Read and check a header from `stream`, no further than needed; `file` and `size` are those of the whole file.

    Raises:
        ModelRefused: see read_header.
        OSError: the stream cannot be read.
    """
    return _Reader(file, stream, size).header()


class _Reader:
    """Reads one header from front to back; keeps the bytes that it has read."""

    def __init__(self, file: Path, stream: Stream, size: int) -> None:
        self._file, self._stream, self._size = file, stream, size
        self._bytes = bytearray()
        self._position = 0
        self._num_elements = 0

    def header(self) -> GgufHeader:
        num_tensors, num_keys = self._counts()
        fields: dict[str, Value] = {}
        for _ in range(num_keys):
            key = self._name("key", MAX_KEY_BYTES)
            if key in fields:
                self._fail(f"it contains the key {key} twice")
            fields[key] = self._value(self._number("I"), key)
        alignment = fields.get("general.alignment", 32)
        if type(alignment) is not int or not 0 < alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
            self._fail(f"general.alignment is {alignment!r:.40}; it must be a power of two, at most {MAX_ALIGNMENT}")
        places = [self._tensor(alignment) for _ in range(num_tensors)]
        data_begin = -(-self._position // alignment) * alignment
        digest = hashlib.blake2b(memoryview(self._bytes)[: self._position], digest_size=16).digest()
        return GgufHeader(self._file, fields, self._placed(places, data_begin), digest)

    def _counts(self) -> tuple[int, int]:
        """Read the first 24 bytes; return the numbers of tensors and keys."""
        magic = self._take(4) if self._size >= MIN_FILE_BYTES else b""
        if magic == LFS_POINTER[:4]:
            raise rejected(f"{self._file} {LFS_ADVICE}.")
        if magic != MAGIC:
            self._fail("it is not a GGUF file, or truncated")
        version = self._number("I")
        if int.from_bytes(version.to_bytes(4, "little"), "big") in VERSIONS:
            raise rejected(f"{self._file} is a big-endian GGUF file; take the little-endian one.")
        if version not in VERSIONS:
            raise rejected(f"{self._file} has version {version} of GGUF; supported are 2 and 3. Take a newer file.")
        num_tensors, num_keys = self._number("Q"), self._number("Q")
        for count, limit, what in ((num_tensors, MAX_TENSORS, "tensors"), (num_keys, MAX_KEYS, "keys")):
            if count > limit:
                self._fail(f"it announces {count} {what}, more than {limit}")
        return num_tensors, num_keys

    def _value(self, kind: int, key: str) -> Value:
        if kind == _STRING:
            return self._strings(1, key)[0]
        if kind in _NUMBERS:
            return self._numbers(kind, 1, key)[0]
        if kind != _ARRAY:
            self._fail(f"{key} has the unknown type {kind}")
        kind, count = self._number("I"), self._number("Q")
        if kind != _STRING and kind not in _NUMBERS:
            self._fail(f"{key} is an array of the unsupported type {kind}")
        num_bytes = count * (8 if kind == _STRING else struct.calcsize("<" + _NUMBERS[kind]))
        self._num_elements += count
        if count > MAX_ARRAY or self._num_elements > MAX_ELEMENTS or num_bytes > self._size - self._position:
            self._fail(f"the array {key} announces {count} elements, more than the limit or than the file has")
        return self._strings(count, key) if kind == _STRING else self._numbers(kind, count, key)

    def _numbers(self, kind: int, count: int, key: str) -> tuple[int, ...] | tuple[float, ...] | tuple[bool, ...]:
        letter = _NUMBERS[kind]
        raw = self._take(count * struct.calcsize("<" + letter))
        if letter == "?" and raw.strip(b"\0\1"):
            self._fail(f"{key} is neither true nor false")
        return struct.unpack(f"<{count}{letter}", raw)

    def _strings(self, count: int, key: str, max_bytes: int = MAX_STRING_BYTES) -> tuple[str, ...]:
        found: list[str] = []
        data, position = self._bytes, self._position  # local: a vocabulary has hundreds of thousands
        for _ in range(count):
            begin = position + 8
            if begin > len(data):
                self._fetch(begin)
            length: int = _LENGTH.unpack_from(data, position)[0]
            position = begin + length
            if length > max_bytes:
                self._fail(f"a string of {key} announces {length} bytes, more than {max_bytes}")
            if position > len(data):
                self._fetch(position)
            try:
                found.append(data[begin:position].decode())
            except UnicodeDecodeError:
                self._fail(f"a string of {key} is not UTF-8")
        self._position = position
        return tuple(found)

    def _name(self, what: str, max_bytes: int) -> str:
        name = self._strings(1, f"a {what}'s name", max_bytes)[0]
        if not name.isprintable() or not name:  # names are shown in messages
            self._fail(f"the name of a {what} is not printable")
        return name

    def _tensor(self, alignment: int) -> tuple[str, TensorType, tuple[int, ...], int]:
        """Read one entry of the table: name, type, shape, offset in the data."""
        name = self._name("tensor", MAX_NAME_BYTES)
        num_dimensions = self._number("I")
        if not 1 <= num_dimensions <= MAX_DIMENSIONS:
            self._fail(f"{name} has {num_dimensions} dimensions; there are 1 to {MAX_DIMENSIONS}")
        sizes = struct.unpack(f"<{num_dimensions}Q", self._take(8 * num_dimensions))
        if not 0 < math.prod(sizes) < MAX_WEIGHTS:
            self._fail(f"{name} has the impossible shape {list(sizes)}")
        number, offset = self._number("I"), self._number("Q")
        kind = TENSOR_TYPES.get(number)
        if kind is None:
            raise rejected(f"{self._file}: {name} has the tensor type {number}, which is unknown; {ADVICE}.")
        if sizes[0] % kind.block_size:
            self._fail(f"{name} has {sizes[0]} columns, which are no whole blocks of {kind.name}")
        if offset % alignment:
            self._fail(f"the offset of {name} is {offset}, not a multiple of {alignment}")
        return name, kind, sizes[::-1], offset

    def _placed(
        self, places: list[tuple[str, TensorType, tuple[int, ...], int]], data_begin: int
    ) -> dict[str, StoredTensor]:
        """Check that tensors are inside the file and do not overlap; return them in the order of the file's table."""
        tensors: dict[str, StoredTensor] = {}
        for name, kind, shape, offset in places:
            if name in tensors:
                self._fail(f"it contains {name} twice")
            begin = data_begin + offset
            end = begin + kind.num_bytes(math.prod(shape))
            if end > self._size:
                self._fail(f"the data of {name} ends {end - self._size} bytes after the end of the file")
            tensors[name] = StoredTensor(self._file, kind, shape, begin, end)
        position = 0
        for name, tensor in sorted(tensors.items(), key=lambda item: item[1].begin):
            if tensor.begin < position:
                self._fail(f"the data of {name} overlaps other data")
            position = tensor.end
        return tensors

    def _number(self, letter: str) -> int:
        value: int = struct.unpack("<" + letter, self._take(4 if letter == "I" else 8))[0]
        return value

    def _take(self, count: int) -> bytes:
        begin, end = self._position, self._position + count
        if end > len(self._bytes):
            self._fetch(end)
        self._position = end
        return bytes(self._bytes[begin:end])

    def _fetch(self, end: int) -> None:
        """Read until the header's bytes up to `end` are there."""
        if end > MAX_HEADER_BYTES:
            self._fail(f"its header has more than {MAX_HEADER_BYTES} bytes")
        if end > self._size:
            self._fail("it is truncated")
        while len(self._bytes) < end:
            chunk = self._stream.read(max(_CHUNK_BYTES, end - len(self._bytes)))
            if not chunk:
                self._fail("it is truncated")
            self._bytes += chunk

    def _fail(self, what: str) -> NoReturn:
        raise _damaged(self._file, what)


def _damaged(file: Path, what: str) -> ModelRefused:
    return rejected(f"{file} cannot be loaded: {what}; download the file again.")
