"""The entries of the journal for an answer, as plain data, and their bytes: MessagePack behind a CRC32 of it.

Times are of the wall clock, in Unix seconds: those of the monotonic clock mean nothing to the next process.
"""

from __future__ import annotations

from typing import Any, TypeVar
from zlib import crc32

import msgspec

from app.contract.errors import ErrorInfo
from app.contract.events import Timings, Usage

_CRC_BYTES = 4
Record = TypeVar("Record")


class JournalDamaged(Exception):
    """Bytes of the journal are not those that were written."""


class Head(msgspec.Struct, array_like=True, frozen=True):
    """An answer as it was asked for: its body is read again by the same route, and gives the same requests.

    Attributes:
        id: the id of the answer.
        owner: identifies the key whose answer it is, with the journal's salt; empty on a server without keys.
        path: the route that the body was sent to.
        body: the body of the request.
        key: the idempotency key of the request, if it has one.
        always_streams: whether the answer streams without the body's field, as on quire.v1.
        created: when the answer was begun.
        seeds: the seed of each request.
        prompts: the CRC32 of each request's prompt; other ones are another answer.
        ttl_s: how long the answer is kept when nobody reads it.
        model: identifies all that the choice of tokens depends on.
        max_tokens: the longest answer to each request, which the body alone does not say; empty in older journals.
        model_name: the name of the model as the answer says it; empty in older journals.
        vocabulary: identifies all that tokens are read with; empty in older journals.
        is_parsed: whether reasoning or calls are read from the answer.
        arrived: when its requests came, which their deadlines count from; 0 in older journals.
        kernels: which chose its tokens, if they choose the same ones again; None in older journals.
    """

    id: str
    owner: bytes
    path: str
    body: bytes
    always_streams: bool
    key: str | None
    created: float
    seeds: tuple[int, ...]
    prompts: tuple[int, ...]
    ttl_s: float
    model: bytes
    max_tokens: tuple[int, ...] = ()
    model_name: str = ""
    vocabulary: bytes = b""
    is_parsed: bool = False
    arrived: float = 0.0
    kernels: str | None = None


class Delta(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A delta of one choice of an answer: where it ends is kept, so its tokens are not merged with others.

    The collector does not track them: a journal can have a million.
    """

    choice: int
    token_ids: tuple[int, ...]
    text: str
    num_top: int | None = None
    rows: bytes = b""


class Columns(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Deltas of one choice of an answer together: a restart need not read them one by one.

    Attributes:
        choice: the choice.
        token_ids: those of all deltas, as bytes of an array of "i".
        ends: where each delta ends in the token ids, as bytes of an array of "I".
        text: that of all deltas, as UTF-8.
        text_ends: where each delta ends in the text, like `ends`; one more if the last delta has no tokens.
        num_top, rows: their log-probabilities (see `Logprobs`).
    """

    choice: int
    token_ids: bytes
    ends: bytes
    text: bytes
    text_ends: bytes
    num_top: int | None = None
    rows: bytes = b""


class End(msgspec.Struct, array_like=True, frozen=True):
    """The end of one choice of an answer."""

    choice: int
    reason: str
    stop_reason: int | str | None
    usage: Usage
    timings: Timings


class Told(msgspec.Struct, array_like=True):
    """A part of an answer that was told, or all of it: its deltas, ends, and its own end if it came.

    `state` is the state of the answer; `failure` is why it is incomplete, if it is. What was written together is in
    `columns`, `deltas` came behind that. With `is_recovered` it went on where other tokens might come than before.
    """

    deltas: list[Delta] = []
    ends: list[End] = []
    state: str = "running"
    failure: ErrorInfo | None = None
    columns: list[Columns] = []
    is_recovered: bool = False

    def add(self, later: Told) -> None:
        """Add what was told later."""
        self.deltas += later.deltas
        self.ends += later.ends
        self.state, self.failure = later.state, later.failure


class Batch(msgspec.Struct, array_like=True):
    """The tokens and ends that answers were told with one commit, by the numbers of the answers.

    Attributes:
        deltas: those of the answers that were told nothing else, one by one: nearly all that is ever recorded.
        told: what the others were told.
    """

    deltas: list[tuple[int, Delta]] = []
    told: dict[int, Told] = {}


_ANY_BATCH: Any = Batch | dict[int, Told]


def pack(record: object, *place: int) -> bytes:
    """Return the bytes of a record; the checksum covers the numbers of its row, too, as SQLite has none."""
    data = msgspec.msgpack.encode(record)
    return _checksum(data, place) + data


def unpack_batch(data: object, *place: int) -> Batch:
    """Return the batch of bytes, also of an older journal, which has no deltas beside the rest.

    Raises:
        JournalDamaged: see `unpack`.
    """
    found = unpack(data, _ANY_BATCH, *place)
    return found if isinstance(found, Batch) else Batch(told=found)


def unpack(data: object, kind: type[Record], *place: int) -> Record:
    """Return the record of bytes in a row; in older journals the checksum covers no numbers.

    Raises:
        JournalDamaged: they are not those of `pack`, or of another row or kind.
    """
    if not isinstance(data, bytes):  # the type of a value is in the file, too
        raise JournalDamaged("a record has no bytes")
    found, packed = data[:_CRC_BYTES], memoryview(data)[_CRC_BYTES:]
    if found != _checksum(packed, place) and found != _checksum(packed):
        raise JournalDamaged("a record has another checksum than its bytes")
    try:
        return msgspec.msgpack.decode(packed, type=kind)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise JournalDamaged(f"a record cannot be read: {error}") from None


def _checksum(data: bytes | memoryview, place: tuple[int, ...] = ()) -> bytes:
    return crc32(data, crc32(",".join(map(str, place)).encode())).to_bytes(_CRC_BYTES, "little")
