"""What is measured: models and loads."""

from __future__ import annotations

from typing import NamedTuple

from app.commands.measuring.workload import Workload
from benchmarks.gpu.loads import NUM_REQUESTS, load_256, uniform_load

REQUESTS, AT_ONCE = "256 requests", "256 at once"
NUM_PROMPT, NUM_NEW = 128, 1024  # of each request of AT_ONCE


class Cell(NamedTuple):
    """A model's step times under a load.

    `REQUESTS` are those of the benchmark `gpu`, of mixed lengths, 131 at a time in the mean; of `AT_ONCE` all 256 run
    from the first step to the last.
    """

    model: str
    what: str

    @property
    def name(self) -> str:
        """Its name in tables and in limits.toml."""
        return f"{self.model}, {self.what}"

    def load(self) -> Workload:
        """Return its requests."""
        return load_256() if self.what == REQUESTS else uniform_load(NUM_REQUESTS, NUM_PROMPT, NUM_NEW)


CELLS = {
    "0.6B": Cell("Qwen3-0.6B", REQUESTS),
    "0.6B-256": Cell("Qwen3-0.6B", AT_ONCE),
    "8B": Cell("Llama-3.1-8B", REQUESTS),
    "1B-256": Cell("Llama-3.2-1B", AT_ONCE),
}
