"""Bytes of a prompt's beginning, which the engine takes once."""

from app.contract.stored_prefix import StoredPrefix


def test_blocks_are_taken_once_from_any_of_them_on():
    stored = StoredPrefix(2, 3, memoryview(b"aabbcc"))
    assert stored.end == 5
    assert bytes(stored.take(3)) == b"bbcc"
    assert stored.num_blocks == 0 and not stored.data
