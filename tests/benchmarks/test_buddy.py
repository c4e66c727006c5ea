"""The buddy allocator, a contiguous reservation that blocks are compared with."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.buddy import POLICIES, BuddyAllocator, Chunk, power_of_two, run
from benchmarks.lengths import Lengths


@given(st.integers(1, 5000), st.lists(st.tuples(st.booleans(), st.integers(1, 600)), max_size=60))
def test_chunks_never_overlap_and_all_memory_is_freed(num_slots, orders):
    memory, taken = BuddyAllocator(num_slots), []
    for is_allocation, size in orders:
        if is_allocation:
            chunk = memory.allocate(size)
            if chunk is not None:
                assert chunk.size == power_of_two(size)
                assert all(
                    chunk.begin >= each.begin + each.size or each.begin >= chunk.begin + chunk.size for each in taken
                )
                assert chunk.begin + chunk.size <= num_slots
                taken.append(chunk)
        elif taken:
            memory.free(taken.pop(size % len(taken)))
    for chunk in taken:
        memory.free(chunk)
    largest = 1 << (num_slots.bit_length() - 1)
    assert memory.allocate(largest) == Chunk(0, largest)


def test_the_smallest_chunk_that_fits_is_split():
    memory = BuddyAllocator(16 + 4)
    assert memory.allocate(3) == Chunk(16, 4)
    assert memory.allocate(3) == Chunk(0, 4)
    assert memory.allocate(8) == Chunk(8, 8)
    assert memory.allocate(8) is None


@pytest.mark.parametrize(("number", "expected"), [(1, 1), (2, 2), (3, 4), (1024, 1024), (1025, 2048)])
def test_sizes_are_rounded_up_to_powers_of_two(number, expected):
    assert power_of_two(number) == expected


def test_only_steps_with_waiting_requests_are_counted():
    """There is memory for one request at a time; no request waits behind the last one, so its steps do not count."""
    load = [Lengths(num_prompt=10, num_answer=3), Lengths(num_prompt=1, num_answer=1)]
    steps = run(load, "max", 2048)
    assert [step.num_filled for step in steps] == [10, 11, 12]
    assert {(step.num_reserved, step.num_running) for step in steps} == {(2048, 1)}
    assert POLICIES["pow2"](load[0]) == 14
    assert POLICIES["oracle"](load[0]) == 13
