"""The memory of a server and its children, apart from the pages of its KV cache."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

STEP_BYTES = 16 << 20
_SIZE, _RESIDENT = re.compile(rb"^Size: +(\d+) kB$", re.M), re.compile(rb"^Rss: +(\d+) kB$", re.M)


class Growth:
    """How many bytes a process and its children have more in memory than when this was made.

    Mappings of `kv_cache_bytes` and more are not counted: the KV cache takes its pages when they are first used, has a
    size of its own, and keeps them. To look at it takes some milliseconds, so `observe` only does where the rest may
    have grown.

    Attributes:
        peak: the highest growth that `observe` has seen, less than STEP_BYTES too low.
    """

    def __init__(self, pid: int, kv_cache_bytes: int) -> None:
        self.peak = 0
        self._pid, self._kv_cache_bytes = pid, kv_cache_bytes
        self._kv_cache = self._before = 0
        self._before = self.now()

    def now(self) -> int:
        """Return the growth."""
        self._kv_cache = resident_of_mappings(self._pid, self._kv_cache_bytes)
        return self._at_most()

    def observe(self) -> int:
        """Raise `peak` if there is more; return it."""
        if self._at_most() >= self.peak + STEP_BYTES:
            self.peak = max(self.peak, self.now())
        return self.peak

    def _at_most(self) -> int:
        """Return the growth if the KV cache has no more pages than at the last look, which are never fewer."""
        return resident_of_tree(self._pid) - self._kv_cache - self._before


def resident_of_tree(pid: int) -> int:
    """Return the resident bytes of a process and of all its children. Shared pages count for each of them."""
    return sum(_resident(each) for each in tree(pid))


def resident_of_mappings(pid: int, least_bytes: int) -> int:
    """Return the resident bytes of a process's mappings of this size and larger ones; 0 of a process that has ended."""
    with suppress(FileNotFoundError, ProcessLookupError):
        page = Path(f"/proc/{pid}/smaps").read_bytes()
        both = zip(_SIZE.findall(page), _RESIDENT.findall(page), strict=True)
        return 1024 * sum(int(resident) for size, resident in both if 1024 * int(size) >= least_bytes)
    return 0


def tree(pid: int) -> Iterator[int]:
    """Yield the ids of a process and of all its children, while they run."""
    yield pid
    with suppress(FileNotFoundError, ProcessLookupError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(FileNotFoundError, ProcessLookupError):
                for child in (task / "children").read_text().split():
                    yield from tree(int(child))


def _resident(pid: int) -> int:
    with suppress(FileNotFoundError, ProcessLookupError):
        found = re.search(rb"^VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_bytes(), re.M)
        return 1024 * int(found[1]) if found else 0
    return 0
