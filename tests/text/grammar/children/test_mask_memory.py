"""Memory that two maps of one file share: notes, and masks behind them."""

from __future__ import annotations

import os

import numpy as np
import pytest

from app.text.grammar.children import mask_memory
from app.text.grammar.children.mask_memory import (
    NOTES_BYTES,
    NUM_NOTES,
    SIGNAL,
    MaskMemory,
    new_memory_file,
    note_signal,
)

WORDS, REGIONS = 3, 4


@pytest.fixture(params=["memfd", "file"])
def descriptor(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch):
    if request.param == "file":
        monkeypatch.delattr(mask_memory.os, "memfd_create", raising=False)
    number = new_memory_file(NOTES_BYTES + 4 * WORDS * REGIONS)
    yield number
    os.close(number)


def test_what_one_map_writes_the_other_one_reads(descriptor: int):
    ours, theirs = (MaskMemory(descriptor, WORDS, REGIONS) for _ in range(2))
    theirs.notes[0], theirs.notes[NUM_NOTES - 1] = 2**63, 7
    theirs.write(REGIONS - 1, np.array([1, 2, 3], np.uint32).tobytes())
    theirs.allow(0, 0)
    theirs.allow(1, 33)
    theirs.allow(1, 95)
    assert ours.allows(1, 33) and ours.allows(1, 95) and not ours.allows(1, 34) and not ours.allows(0, 33)
    assert (ours.notes[0], ours.notes[NUM_NOTES - 1], sum(ours.notes[1:-1])) == (2**63, 7, 0)
    assert np.frombuffer(ours.words, np.uint32).reshape(REGIONS, WORDS).tolist() == [
        [1, 0, 0], [0, 2, 1 << 31], [0, 0, 0], [1, 2, 3],
    ]  # fmt: skip


def test_a_region_is_behind_the_notes_and_the_regions_before_it(descriptor: int):
    memory = MaskMemory(descriptor, WORDS, REGIONS)
    first = np.frombuffer(memory.words, np.uint32).ctypes.data
    assert [memory.address(region) - first for region in range(REGIONS)] == [0, 12, 24, 36]


def test_a_write_of_another_length_than_a_mask_is_refused(descriptor: int):
    memory = MaskMemory(descriptor, WORDS, REGIONS)
    with pytest.raises(ValueError):
        memory.write(0, bytes(4 * (WORDS + 1)))
    with pytest.raises(ValueError):
        memory.write(REGIONS, bytes(4 * WORDS))
    assert not any(memory.words)


def test_memory_without_a_name_is_left_nowhere(descriptor: int):
    assert os.fstat(descriptor).st_nlink == 0


def test_a_signal_is_noted_without_a_map(descriptor: int):
    memory = MaskMemory(descriptor, WORDS, REGIONS)
    memory.notes[SIGNAL - 1] = 7
    note_signal(descriptor, 27)
    assert (memory.notes[SIGNAL], memory.notes[SIGNAL - 1], sum(memory.notes), any(memory.words)) == (27, 7, 34, False)
    note_signal(descriptor, 0)
    assert memory.notes[SIGNAL] == 0


def test_a_signal_that_cannot_be_noted_ends_nobody():
    """The process that forks notes it, which all children end with."""
    read_end, write_end = os.pipe()
    note_signal(write_end, 27)
    assert os.write(write_end, b"a") == 1 and os.read(read_end, 8) == b"a"
    os.close(read_end)
    os.close(write_end)
