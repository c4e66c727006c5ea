"""CPU time of the threads of a server over a scripted device. Linux."""

from __future__ import annotations

from typing import NamedTuple, Self

from benchmarks.gpu_host.device import THREAD
from benchmarks.threads import threads_of


class ThreadTimes(NamedTuple):
    """CPU seconds of a server's event loop, its engine thread, and its other threads.

    `waited` are the seconds that loop and engine were ready to run and had no core.
    """

    loop: float
    engine: float
    others: float
    waited: float

    @classmethod
    def of(cls, pid: int) -> Self:
        """Return the times of a server over a scripted device so far."""
        loop = engine = others = waited = 0.0
        for thread in threads_of(pid):
            is_engine = thread.name == THREAD
            loop += thread.running_s * thread.is_first
            engine += thread.running_s * is_engine
            others += thread.running_s * (not thread.is_first and not is_engine)
            waited += thread.waited_s * (thread.is_first or is_engine)
        return cls(loop, engine, others, waited)

    def since(self, before: ThreadTimes) -> ThreadTimes:
        """Return the seconds since then."""
        return ThreadTimes(*(now - then for now, then in zip(self, before, strict=True)))
