"""The output of a request that is pooled: one vector, when its prompt has been computed."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from app.contract.events import ChoiceEnd, Embedded, EngineEvent, Finished, FinishReason, Timings, Usage
from app.contract.requests import Pooling, PoolingKind
from app.engine.schedule.sequence import Sequence
from app.engine.schedule.step_plan import Sample


class EmbeddingOutput:
    """Has the members of `Choice` that the output processor uses. The token that the step samples is ignored.

    Engine thread only.
    """

    def __init__(self, sequence: Sequence) -> None:
        self._sequence = sequence
        self.ended: ChoiceEnd | None = None
        self.is_touched = False

    def append(self, sample: Sample) -> None:
        """End: the first sample comes with the last token of the prompt."""
        self.end(FinishReason.STOP)

    def end(self, reason: FinishReason) -> None:
        """End with `reason`."""
        self.ended = ChoiceEnd(reason)

    def report(self, events: list[EngineEvent], now: float) -> None:
        """Add the vector, or the end of a request that was cancelled."""
        request, num_prompt = self._sequence.request, self._sequence.num_prompt
        if self.ended is not None and self.ended.reason is FinishReason.CANCELLED:
            events.append(Finished(request.id, 0, self.ended, Usage(num_prompt, 0), Timings(0.0, 0.0, 0.0)))
            return
        assert request.pooling is not None, "only requests with pooling have this output"
        vector = _finished(self._sequence.pooled, num_prompt, request.pooling)
        events.append(Embedded(request.id, vector.tobytes(), num_prompt))


def _finished(pooled: bytes, num_prompt: int, pooling: Pooling) -> npt.NDArray[np.float32]:
    """Return the vector of a pooled prompt as it was requested."""
    vector = np.frombuffer(pooled, np.float32)[: pooling.num_dimensions]
    if pooling.kind is PoolingKind.MEAN:
        vector = vector / np.float32(num_prompt)
    if pooling.is_normalized:
        length = np.sqrt(np.sum(np.square(vector, dtype=np.float64)))
        vector = (vector / max(length, np.finfo(np.float32).tiny)).astype(np.float32)
    return vector
