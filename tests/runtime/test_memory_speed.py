"""The speed of the memory is measured once, with a thread for each core, on all of what was asked for."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from itertools import pairwise

import pytest

from app.runtime import memory_speed as module
from app.runtime.memory_speed import measured_bytes, memory_speed


@pytest.fixture(autouse=True)
def unmeasured() -> Iterator[None]:
    """Forget what was measured, before and after."""
    memory_speed.cache_clear()
    yield
    memory_speed.cache_clear()


@pytest.mark.parametrize("num_cores", [1, 3, 8])
def test_each_core_reads_its_share(num_cores: int, monkeypatch: pytest.MonkeyPatch):
    shares: list[tuple[int, int]] = []

    def read_speed(place: int, num_bytes: int) -> float:
        shares.append((place, num_bytes))
        return 1e9

    monkeypatch.setattr(module, "num_cores", lambda: num_cores)
    monkeypatch.setattr(module, "_read_speed", read_speed)
    assert memory_speed() == num_cores * 1e9
    shares.sort()
    assert len(shares) == num_cores and all(size >= 16 << 20 for _, size in shares)
    assert sum(size for _, size in shares) > measured_bytes() - num_cores
    assert all(place + size <= after for (place, size), (after, _) in pairwise(shares))


def test_the_memory_is_read_once_in_a_process(monkeypatch: pytest.MonkeyPatch):
    first = memory_speed()
    monkeypatch.setattr(mmap, "mmap", None)
    assert memory_speed() == first > 0


def test_without_memory_nothing_is_measured(monkeypatch: pytest.MonkeyPatch):
    def refuse(*args: object, **options: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(mmap, "mmap", refuse)
    with pytest.raises(OSError, match="Cannot allocate"):
        memory_speed()
