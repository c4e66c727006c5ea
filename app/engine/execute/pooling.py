"""Pools the hidden states of a step's token rows into vectors, for embeddings.

A mean is a float32 sum to which rows are added one after another, in the order of the tokens. So it has the same bits
whatever the chunks were: a sum of each chunk would be rounded differently.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from app.contract.requests import PoolingKind
from app.engine.schedule.step_plan import PooledChunk


def pool(hidden_TD: Tensor, chunks: Iterable[PooledChunk]) -> tuple[bytes, ...]:
    """Return the pooled vector of each chunk, float32: the sum so far, or the last state; `hidden_TD` on the host."""
    return tuple(_pool(hidden_TD[chunk.first_row : chunk.first_row + chunk.num_rows], chunk) for chunk in chunks)


def _pool(rows_TD: Tensor, chunk: PooledChunk) -> bytes:
    if chunk.kind is PoolingKind.LAST:
        return rows_TD[-1].to(torch.float32).numpy().tobytes()
    rows = rows_TD.to(torch.float32).numpy()
    total = np.zeros(rows.shape[1], np.float32) if chunk.carried is None else np.frombuffer(chunk.carried, np.float32)
    total = total.copy()
    for row in rows:
        total += row
    return total.tobytes()
