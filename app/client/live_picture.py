"""What a client of quire.live.v1 knows: the newest message, and the state and the owner of each block; without I/O."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

import msgspec

from app.contract.live_state import COPIED, HEADER, CellState, LiveState, MessageKind

_MORE, _BITS, _MAX_SHIFT = 0x80, 7, 28


class LivePicture:
    """The picture that the messages of one connection make; block i is at index i - 1.

    Attributes:
        number: the number of the last message, 0 before the first.
        state: its JSON part, None before the first.
        flags: the byte of each block: its state, and whether it has just been copied.
        owners: the number of each block's group.
    """

    def __init__(self) -> None:
        self.number = 0
        self.state: LiveState | None = None
        self.flags = bytearray()
        self.owners = array("Q")

    def receive(self, message: bytes) -> None:
        """Take the next message.

        Raises:
            ValueError: it is malformed, or a difference to a message that was not the last.
        """
        if len(message) < HEADER.size:
            raise ValueError(f"A message of {len(message)} bytes is too short; it begins with {HEADER.size} bytes.")
        kind, number, length = HEADER.unpack_from(message)
        end = HEADER.size + length
        state = msgspec.json.decode(message[HEADER.size : end], type=LiveState)
        if kind == MessageKind.WHOLE:
            self._fill(state.num_blocks, message[end:])
        elif kind != MessageKind.DIFFERENCE:
            raise ValueError(f"A message of kind {kind} is unknown; 0 is whole, 1 a difference.")
        elif number != self.number + 1:
            raise ValueError(f"Message {number} is the difference to {number - 1}, but the last one was {self.number}.")
        else:
            self._change(message[end:])
        self.number, self.state = number, state

    def state_of(self, block_id: int) -> CellState:
        """Return the state of a block; ids begin with 1."""
        return CellState(self.flags[block_id - 1] & ~COPIED)

    def runs(self) -> list[tuple[int, int, int]]:
        """Return equal neighbours as runs: count, byte, owner."""
        found: list[tuple[int, int, int]] = []
        for flags, owner in zip(self.flags, self.owners, strict=True):
            if found and found[-1][1:] == (flags, owner):
                found[-1] = (found[-1][0] + 1, flags, owner)
            else:
                found.append((1, flags, owner))
        return found

    def _fill(self, num_blocks: int, rows: bytes) -> None:
        flags, owners = bytearray(), array("Q")
        for count, byte, owner in _rows(rows):
            if len(flags) + count > num_blocks:
                raise ValueError(f"The runs of a whole message make more than {num_blocks} blocks.")
            flags.extend(bytes([byte]) * count)
            owners.extend([owner] * count)
        if len(flags) != num_blocks:
            raise ValueError(f"The runs of a whole message make {len(flags)} blocks; there are {num_blocks}.")
        self.flags, self.owners = flags, owners

    def _change(self, rows: bytes) -> None:
        place = -1
        for gap, byte, owner in _rows(rows):
            place += gap
            if not 0 <= place < len(self.flags):
                raise ValueError(f"There is no block {place + 1}; there are {len(self.flags)}.")
            self.flags[place], self.owners[place] = byte, owner


def _rows(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield number, byte, number, again and again."""
    place = 0
    try:
        while place < len(data):
            first, place = _varint(data, place)
            byte = data[place]
            owner, place = _varint(data, place + 1)
            yield first, byte, owner
    except IndexError:
        raise ValueError("The blocks of a message end too early.") from None


def _varint(data: bytes, place: int) -> tuple[int, int]:
    """Return the number at a place, in LEB128, and the place behind it."""
    value = shift = 0
    while True:
        byte = data[place]
        place += 1
        value |= (byte & ~_MORE) << shift
        if byte < _MORE:
            return value, place
        shift += _BITS
        if shift > _MAX_SHIFT:
            raise ValueError("A number has more than five bytes.")
