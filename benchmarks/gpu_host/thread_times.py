"""CPU time of single threads of another process. Linux."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple, Self

from benchmarks.gpu_host.device import THREAD


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
        for task in Path(f"/proc/{pid}/task").iterdir():
            try:
                running, waiting, *_ = (int(number) / 1e9 for number in (task / "schedstat").read_text().split())
                is_engine = (task / "comm").read_text().strip() == THREAD
            except OSError:  # it has ended
                continue
            is_loop = task.name == str(pid)
            loop += running * is_loop
            engine += running * is_engine
            others += running * (not is_loop and not is_engine)
            waited += waiting * (is_loop or is_engine)
        return cls(loop, engine, others, waited)

    def since(self, before: ThreadTimes) -> ThreadTimes:
        """Return the seconds since then."""
        return ThreadTimes(*(now - then for now, then in zip(self, before, strict=True)))
