"""What the threads of a server have spent, as the system knows them by their names (`named_server.py`)."""

from __future__ import annotations

from typing import NamedTuple

from benchmarks.threads import threads_of

ENGINE, ENCODER = "quire-engine", "quire-live_0"


class Spent(NamedTuple):
    """Processor seconds of a server's engine thread, event loop, and thread that encodes pictures."""

    engine_s: float = 0.0
    loop_s: float = 0.0
    encoder_s: float = 0.0

    @classmethod
    def by(cls, pid: int) -> Spent:
        """Return the times of a server so far; of a thread that runs, a few milliseconds may be missing."""
        threads = [*threads_of(pid)]
        named = {name: sum(one.running_s for one in threads if one.name == name) for name in (ENGINE, ENCODER)}
        return cls(named[ENGINE], sum(one.running_s for one in threads if one.is_first), named[ENCODER])

    def since(self, before: Spent) -> Spent:
        """Return the seconds since then."""
        return Spent(*(now - then for now, then in zip(self, before, strict=True)))
