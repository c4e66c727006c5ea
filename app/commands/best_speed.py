"""How fast a model can answer one request on this machine at best: as fast as memory gives what a token reads."""

from __future__ import annotations

from typing import NamedTuple

from app.engine.execute.memory_plan import free_memory
from app.runtime.memory_speed import measured_bytes, memory_speed

MIN_BYTES = 64 << 20
"""What fewer bytes take is not told by the memory: caches hold many of them."""


class BestSpeed(NamedTuple):
    """The bytes of weights that a token reads, and how many bytes a second this machine reads."""

    active_bytes: int
    bytes_per_second: float

    @property
    def tokens_per_second(self) -> float:
        """The bound of an answer's speed, where no token is guessed ahead."""
        return self.bytes_per_second / self.active_bytes

    def __str__(self) -> str:
        speed = self.tokens_per_second
        return f"{speed:,.0f} tokens/s" if speed >= 9.95 else f"{speed:.1f} tokens/s"


def best_speed(active_bytes: int) -> BestSpeed | None:
    """Measure the memory of this machine; None for a model that caches hold, and where hardly any memory is free."""
    if active_bytes < MIN_BYTES or free_memory() < 2 * measured_bytes():
        return None
    try:
        return BestSpeed(active_bytes, memory_speed())
    except OSError:
        return None
