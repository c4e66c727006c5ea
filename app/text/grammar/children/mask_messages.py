"""What the engine and the process that finds masks say to each other: MessagePack behind its length."""

from __future__ import annotations

import socket
from typing import Generic, TypeVar

import msgspec

from app.contract.grammar import Constraint

Message = TypeVar("Message")
MAX_AHEAD = 16
"""The most tokens that must follow a sequence's that masks are made behind ahead."""
LENGTH_BYTES = 4
READ_BYTES = 64 * 2**10
"""The most that is read from a socket at once."""


class Setup(msgspec.Struct, frozen=True):
    """The facts that the process needs first.

    `num_words` are those of a mask, `num_regions` the masks behind the notes in the shared memory.
    """

    num_threads: int
    num_words: int
    num_regions: int
    eos_token_ids: tuple[int, ...]


class Start(msgspec.Struct, array_like=True, frozen=True):
    """A sequence with a grammar begins, with the tokens that it has.

    Its first mask goes to `region`, to none if that is -1. Compiled, the grammar takes about `num_bytes`; to compile it
    took `compile_s` of processor time before.
    """

    sequence_id: int
    region: int
    account: str
    constraint: Constraint
    token_ids: tuple[int, ...]
    num_bytes: int
    compile_s: float = 0.0


class Take(msgspec.Struct, array_like=True, frozen=True):
    """The next tokens of a sequence; those behind its end are ignored. The mask behind them goes to `region`.

    Where tokens must follow, the masks behind these go to the regions from `ahead` on, to none if that is -1.
    """

    sequence_id: int
    region: int
    token_ids: tuple[int, ...]
    ahead: int = -1


class Draft(msgspec.Struct, array_like=True, frozen=True):
    """Draft tokens of a sequence: the masks behind them go to the regions from `region` on."""

    sequence_id: int
    region: int
    token_ids: tuple[int, ...]


class Turn(msgspec.Struct, array_like=True, frozen=True):
    """The orders for the process, in this order: forget the sequences `ends`, then the others."""

    ends: tuple[int, ...] = ()
    starts: tuple[Start, ...] = ()
    takes: tuple[Take, ...] = ()
    drafts: tuple[Draft, ...] = ()


class Took(msgspec.Struct, array_like=True, frozen=True):
    """A sequence has taken so many of the tokens; then it was complete, or failed."""

    sequence_id: int
    num_taken: int
    is_complete: bool
    failure: str | None

    @property
    def is_end(self) -> bool:
        """Whether no mask follows."""
        return self.is_complete or self.failure is not None


class Drafted(msgspec.Struct, array_like=True, frozen=True):
    """The masks behind the first `count` draft tokens of a sequence are there; it is -1 where none could be made.

    With `is_complete` the answer ends with the next one; else its grammar forbids that, if there is one.
    """

    sequence_id: int
    count: int
    is_complete: bool = False


class Ready(msgspec.Struct, array_like=True, frozen=True):
    """The mask behind the `num_tokens` tokens of a sequence is there, and the tokens that must follow.

    With `is_slow` it took so long that no masks behind draft tokens should be asked for. `ahead` says which masks
    behind the tokens that must follow are there, too. With `is_complete` the sequence began with a whole answer.
    """

    sequence_id: int
    num_tokens: int
    is_slow: bool
    failure: str | None
    forced: tuple[int, ...]
    ahead: Drafted | None = None
    is_complete: bool = False


class Reply(msgspec.Struct, array_like=True, frozen=True):
    """The results of the process since its last reply."""

    took: tuple[Took, ...] = ()
    ready: tuple[Ready, ...] = ()
    drafted: tuple[Drafted, ...] = ()


_encoder = msgspec.msgpack.Encoder()


def encode(message: msgspec.Struct) -> bytes:
    """Return a message behind its length."""
    data = _encoder.encode(message)
    return len(data).to_bytes(LENGTH_BYTES, "little") + data


class Messages(Generic[Message]):
    """Cuts what comes from a socket into messages of one kind."""

    def __init__(self, kind: type[Message]) -> None:
        self._decoder = msgspec.msgpack.Decoder(kind)
        self._data = bytearray()

    def feed(self, data: bytes) -> list[Message]:
        """Take bytes, and return the messages that they complete."""
        buffer = self._data
        buffer += data
        found: list[Message] = []
        start = 0
        while len(buffer) - start >= LENGTH_BYTES:
            end = start + LENGTH_BYTES + int.from_bytes(buffer[start : start + LENGTH_BYTES], "little")
            if len(buffer) < end:
                break
            found.append(self._decoder.decode(buffer[start + LENGTH_BYTES : end]))
            start = end
        del buffer[:start]
        return found


def read_message(connection: socket.socket, kind: type[Message]) -> Message | None:
    """Return the next message; None at the end of the connection. Blocks."""
    head = _read(connection, LENGTH_BYTES)
    data = None if head is None else _read(connection, int.from_bytes(head, "little"))
    return None if data is None else msgspec.msgpack.decode(data, type=kind)


def _read(connection: socket.socket, count: int) -> bytes | None:
    data = bytearray()
    while len(data) < count:
        piece = connection.recv(count - len(data))
        if not piece:
            return None
        data += piece
    return bytes(data)
