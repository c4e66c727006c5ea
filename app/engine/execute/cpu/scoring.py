"""Scores the tokens of prompts: their log-probabilities, from the hidden states of the tokens before them.

The logits are computed after the step is sampled, in the memory of the step's own logits and at most as many rows at a
time as that has. So scoring needs no more memory, and steps that score nothing are as they were.
"""

from __future__ import annotations

from collections.abc import Iterable

from app.contract.packed_logprobs import pack_row
from app.engine.execute.cpu.graph import HostGraph
from app.engine.execute.host_sampler import token_logprobs
from app.engine.schedule.step_plan import ScoredChunk


def score(graph: HostGraph, chunks: Iterable[ScoredChunk]) -> tuple[bytes, ...]:
    """Return the packed log-probabilities of each chunk of the step that `graph` has run. Engine thread only."""
    return tuple(_score(graph, chunk) for chunk in chunks)


def _score(graph: HostGraph, chunk: ScoredChunk) -> bytes:
    rows, size = [], graph.max_logit_rows
    for first in range(0, len(chunk.token_ids), size):
        token_ids = chunk.token_ids[first : first + size]
        first_row = chunk.first_row + first
        logits_RV = graph.logits(range(first_row, first_row + len(token_ids)))
        for token_id, logits_V in zip(token_ids, logits_RV, strict=False):
            found = token_logprobs(logits_V, token_id, chunk.num_top)
            rows.append(pack_row(token_id, found.logprob, found.rank, found.top_token_ids, found.top_logprobs))
    return b"".join(rows)
