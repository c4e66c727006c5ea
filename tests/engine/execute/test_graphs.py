"""A step of a real model: the logits of a token row are the same bits however often it is named."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from app.checkpoint import Checkpoint
from app.engine.execute.batch import BatchState
from app.engine.execute.graphs import EagerGraph
from app.engine.execute.kv_cache import KVCache, KVLayout
from app.engine.schedule.plan import Chunk, StepPlan, TableWrite
from app.kernels.cpu.torch_ops import TorchOps
from app.models.decoder import Arena, Decoder
from app.models.hf_config import read_spec
from app.models.loader import DTYPES, SafetensorsSource, load_weights
from app.models.parallel import ParallelContext
from app.models.rope import rope_table
from tests.checkpoints import tiny

MAX_SEQS = 24
CHUNKS = (Chunk(1, 1, 0, tuple(range(20, 33))), Chunk(2, 2, 0, (50,)), Chunk(3, 3, 0, (60, 61)))
LAST_ROWS = (12, 13, 15)
TABLES = (TableWrite(1, 0, (3,)), TableWrite(2, 0, (1,)), TableWrite(3, 0, (4,)))


def logits(dtype: str, chunks: tuple[Chunk, ...], logit_rows: tuple[int, ...]) -> Tensor:
    """The logits of one step over fresh sequences."""
    checkpoint = Checkpoint.open(tiny("Llama"))
    spec = read_spec(checkpoint, dtype)
    with SafetensorsSource(checkpoint) as source:
        weights = load_weights(spec, source, ParallelContext())
    rope_PH = rope_table(spec.rope, spec.head_dim, 64, DTYPES[dtype])
    decoder = Decoder(spec, weights, rope_PH, TorchOps(), ParallelContext())
    cache = KVCache(KVLayout(16, spec.num_layers, spec.num_kv_heads, spec.head_dim, DTYPES[dtype]), 4)
    graph = EagerGraph(decoder, cache.layers, Arena.allocate(spec, 32, MAX_SEQS, DTYPES[dtype]))
    batch = BatchState(MAX_SEQS, 4, 32, 16)
    return graph.run(batch.apply(StepPlan(1, chunks, logit_rows, (), table_writes=TABLES)))[: len(logit_rows)]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_repeated_row_has_the_bits_of_a_single_one(dtype: str):
    (once,) = logits(dtype, CHUNKS[:1], LAST_ROWS[:1])
    for count in (2, 8, 9, MAX_SEQS):
        assert all(torch.equal(row, once) for row in logits(dtype, CHUNKS[:1], LAST_ROWS[:1] * count))
    singles = logits(dtype, CHUNKS, LAST_ROWS)
    order = (2, 0, 0, 1, 0, 2, 0, 1, 1, 0)
    repeated = logits(dtype, CHUNKS, tuple(LAST_ROWS[which] for which in order))
    assert torch.equal(singles[0], once)
    assert all(torch.equal(row, singles[which]) for row, which in zip(repeated, order, strict=True))
