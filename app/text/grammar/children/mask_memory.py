"""The memory that the server and the process that finds masks share: notes on who is worked on, and masks."""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import tempfile
from contextlib import suppress

NUM_NOTES = 64
NOTE_BYTES = 8
NOTES_BYTES = NOTE_BYTES * NUM_NOTES
"""The notes come first, 64-bit numbers, 0 without any: that of the sequence that has taken too long, those of threads,
which say what each works on, and the last one, of the signal that has ended the process."""
CULPRIT, MAIN, WATCHER, SIGNAL = 0, 1, NUM_NOTES - 2, NUM_NOTES - 1
"""Notes by their index: those of mask threads come behind those of COMPILERS."""
COMPILERS = {2: False, 3: True}
"""The notes of the threads that compile grammars, and whether that thread compiles those that take long."""
NO_SEQUENCE = 2**64 - 1
"""The note of a thread that works, but for no sequence."""


class MaskMemory:
    """Masks of `num_words` 32-bit words, each in a region of its own, behind the notes.

    Attributes:
        notes: the notes, by their index.
        words: the words of all masks, one behind the other.
    """

    def __init__(self, descriptor: int, num_words: int, num_regions: int) -> None:
        self.num_words = num_words
        self._map = mmap.mmap(descriptor, NOTES_BYTES + 4 * num_words * num_regions)
        view = memoryview(self._map)
        self.notes = view[:NOTES_BYTES].cast("Q")
        self.words = view[NOTES_BYTES:].cast("I")
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._map)) + NOTES_BYTES

    def address(self, region: int) -> int:
        """Return the address of a region's mask."""
        return self._address + 4 * self.num_words * region

    def mask(self, region: int) -> memoryview:
        """Return the words of a region's mask."""
        first = self.num_words * region
        return self.words[first : first + self.num_words]

    def allows(self, region: int, token_id: int) -> bool:
        """Return whether a region's mask allows a token."""
        return bool(self.words[self.num_words * region + (token_id >> 5)] >> (token_id & 31) & 1)

    def write(self, region: int, mask: bytes) -> None:
        """Write a whole mask."""
        self.mask(region)[:] = memoryview(mask).cast("I")

    def allow(self, region: int, token_id: int) -> None:
        """Allow one more token."""
        self.words[self.num_words * region + (token_id >> 5)] |= 1 << (token_id & 31)


def note_signal(descriptor: int, number: int) -> None:
    """Note in shared memory which signal has ended the process that wrote its masks. Maps nothing, and never fails."""
    with suppress(OSError):
        os.pwrite(descriptor, number.to_bytes(NOTE_BYTES, sys.byteorder), NOTE_BYTES * SIGNAL)


def new_memory_file(num_bytes: int) -> int:
    """Return the descriptor of memory that processes can share; nothing of it is left when all have closed it."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("quire-masks")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, num_bytes)
    return descriptor
