"""Memory that is needed for a while is seen, and memory that stays is not."""

from benchmarks.cpu.loading import passing_bytes, reset_peak

SIZE = 64 << 20


def test_what_was_freed_is_passing_and_what_stays_is_not():
    reset_peak()
    kept = b"1" * SIZE
    assert passing_bytes() < SIZE // 2
    freed = b"2" * (2 * SIZE)
    del freed
    assert 1.5 * SIZE < passing_bytes() < 2.5 * SIZE
    assert len(kept) == SIZE
