"""How long a step takes on one H200: an estimate, made before any GPU was measured, that a scripted device follows."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from app.engine.execute.gpu.shapes import StepShape
from app.engine.schedule.step_plan import StepPlan


class StepTimes(NamedTuple):
    """Milliseconds of decode steps by their sequences, and microseconds of a token row in a mixed step."""

    decode_ms: dict[int, float]
    row_us: float

    def seconds(self, shape: StepShape, plan: StepPlan | None) -> float:
        """Return the time of a step; between the rows of the table it is interpolated.

        A mixed step takes the time of the sequences that decode in it, and of the products of its rows.
        """
        if shape.is_decode or plan is None:
            return self._decode_s(shape.num_rows)
        return self._decode_s(plan.chunks.counts.count(1)) + 1e-6 * self.row_us * shape.num_rows

    def _decode_s(self, num_rows: int) -> float:
        return float(np.interp(num_rows, list(self.decode_ms), list(self.decode_ms.values()))) / 1000


STEP_TIMES = {
    "Qwen3-0.6B": StepTimes({1: 0.85, 32: 2.5, 131: 5.6, 256: 10.6}, 2.0),
    "Llama-3.2-1B": StepTimes({1: 0.98, 32: 1.5, 128: 2.7, 256: 4.4}, 4.0),
    "Llama-3.1-8B": StepTimes({1: 4.6, 32: 6.8, 128: 10.9, 256: 18.0}, 27.0),
}
"""By model: a context of 1k tokens, bf16; products at 600 TFLOP/s."""
