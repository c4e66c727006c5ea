"""How fast this machine reads memory with all its cores, which limits the answer of one request on a CPU."""

from __future__ import annotations

import ctypes
import mmap
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache

from app.runtime.cores import num_cores

_NUM_BYTES, _BYTES_PER_CORE = 256 << 20, 16 << 20
_SLICE_BYTES = 4 << 20  # read in less time than the system gives a thread at once, also beside other programs
_SECONDS = 0.1
_FILLED, _ABSENT = 1, 0


def measured_bytes() -> int:
    """Return the size of the memory that is read: more than caches hold, also where one core has them for itself."""
    return max(_NUM_BYTES, _BYTES_PER_CORE * num_cores())


@cache
def memory_speed() -> float:
    """Return how many bytes a second all cores read together, as measured at the first call. Any thread.

    The first call blocks for a tenth of a second, and for as long as it takes to fill `measured_bytes`.

    Raises:
        OSError: there is not so much memory.
    """
    count = num_cores()
    share = measured_bytes() // count
    memory = mmap.mmap(-1, share * count, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without huge pages
            memory.madvise(mmap.MADV_HUGEPAGE)  # as weights are kept
    first = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    places = [first + index * share for index in range(count)]
    with ThreadPoolExecutor(count) as threads:  # the calls release the GIL
        # Each page is written first: those that never were are one page of zeros.
        list(threads.map(lambda place: ctypes.memset(place, _FILLED, share), places))
        return sum(threads.map(lambda place: _read_speed(place, share), places))


def _read_speed(place: int, num_bytes: int) -> float:
    """Return the bytes a second of one thread: the median of slices, which leaves out those that had to wait."""
    search = ctypes.CDLL(None).memchr  # reads all, because it looks for a byte that is not there
    search.argtypes, search.restype = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t], ctypes.c_void_p
    times: list[float] = []
    end = time.perf_counter() + _SECONDS
    while time.perf_counter() < end:
        for begin in range(place, place + num_bytes, _SLICE_BYTES):
            start = time.perf_counter()
            search(begin, _ABSENT, min(_SLICE_BYTES, place + num_bytes - begin))
            times.append(time.perf_counter() - start)
    return _SLICE_BYTES / statistics.median(times)
