"""A model whose step returns the logits of every token of one sequence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from app.checkpoint.inspection import inspect
from app.config.settings import make_config
from app.engine.execute.cpu.backend import HostBackend
from app.engine.execute.cpu.batch import BatchState
from app.engine.execute.kv_cache import KVCache
from app.engine.execute.selection import select_backend
from app.engine.schedule.step_plan import Chunk, Chunks, StepPlan, TableWrite
from app.kernels.ops import Ops
from app.models.file_source import FileSource
from app.models.loader import TensorSource, load_weights

MAX_TOKENS = 512
NUM_BLOCKS = MAX_TOKENS // 16
_SIZES = {"max_num_seqs": MAX_TOKENS, "max_num_batched_tokens": MAX_TOKENS, "max_model_len": MAX_TOKENS}


class ScoredModel:
    """The engine's own step of a model, with room for one sequence of MAX_TOKENS that are all logit rows.

    The sequence is one chunk: the KV cache is written and read as in any other.
    """

    def __init__(
        self, settings: Mapping[str, object], source: TensorSource | None = None, ops: Ops | None = None
    ) -> None:
        """Load the weights from `source`, by default the model's files; `ops` replaces those of torch."""
        config = make_config({"device": "cpu", **_SIZES, **settings})
        files = inspect(config.model)
        backend = select_backend(config, files)
        assert isinstance(backend, HostBackend), "this benchmark runs on the CPU"
        if ops is not None:
            backend.ops = ops
        tensors: AbstractContextManager[TensorSource]
        tensors = FileSource(files) if source is None else nullcontext(source)
        with tensors as opened:
            weights = load_weights(files.spec, opened, packer=backend.packer)
        cache = KVCache(backend.kv_layout(), NUM_BLOCKS, 0, backend.ops)
        self._batch = BatchState(MAX_TOKENS, NUM_BLOCKS, MAX_TOKENS, config.cache.block_size)
        self._graph = backend.make_graph(weights, cache.layers, self._batch, backend.make_arena())

    @torch.inference_mode()
    def logits(self, token_ids: Sequence[int], first: int = 0) -> Tensor:
        """Return the logits [T, V] of the tokens from `first` on, which the next call overwrites."""
        blocks, rows = tuple(range(1, NUM_BLOCKS + 1)), tuple(range(first, len(token_ids)))
        chunks = Chunks.of([Chunk(1, 1, 0, tuple(token_ids))])
        plan = StepPlan(1, chunks, rows, (), table_writes=(TableWrite(1, 0, blocks),))
        return self._graph.run(self._batch.apply(plan))[: len(rows)]
