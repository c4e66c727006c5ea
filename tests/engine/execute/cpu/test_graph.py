"""A step of a real model, op by op or recorded: logits, tokens, and their independence of other rows."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import pytest
import torch
from torch import Tensor

from app.checkpoint.inspection import inspect
from app.config.settings import make_config
from app.contract.sampling_params import SamplingParams
from app.engine.execute.cpu.backend import EagerBackend, NativeBackend
from app.engine.execute.cpu.batch import BatchState
from app.engine.execute.cpu.graph import HostGraph
from app.engine.execute.interfaces import Backend
from app.engine.execute.kv_cache import KVCache
from app.engine.schedule.row_sampling import RowSampling
from app.engine.schedule.step_plan import Chunk, Chunks, RowStart, SampleRow, StepPlan, TableWrite
from app.kernels.cpu.library import load_library
from app.models.file_source import FileSource
from app.models.loader import load_weights
from tests.checkpoints import tiny
from tests.quantized_models import QUANTIZED, quantized_model

MAX_SEQS = 24
CHUNKS = (Chunk(1, 1, 0, tuple(range(20, 33))), Chunk(2, 2, 0, (50,)), Chunk(3, 3, 0, (60, 61)))
LAST_ROWS = (12, 13, 15)
TABLES = (TableWrite(1, 0, (3,)), TableWrite(2, 0, (1,)), TableWrite(3, 0, (4,)))
ORDER = (2, 0, 0, 1, 0, 2, 0, 1, 1, 0)
GRAPHS = ("eager", "recorded")
DTYPES = ("float32", "bfloat16", "float16")


class GraphSetup:
    """A graph of one kind for a small model, and the rows that it reads, which sample greedily."""

    def __init__(self, kind: str, model: str) -> None:
        """With the tiny Llama in a dtype, or one of QUANTIZED."""
        settings = {"model": str(tiny("Llama")), "dtype": model} if model in DTYPES else quantized_model(model)
        config = make_config({**settings, "max_num_seqs": MAX_SEQS, "max_num_batched_tokens": 32})
        files = inspect(config.model)
        spec = files.spec
        library = None if kind == "eager" else load_library()
        if kind == "recorded" and library is None:
            pytest.skip("no native kernels here")
        backend: Backend = EagerBackend(config, spec) if library is None else NativeBackend(config, spec, library)
        with FileSource(files) as source:
            weights = load_weights(spec, source, packer=backend.packer)
        cache = KVCache(backend.kv_layout(), 4, 0, backend.ops)
        self.batch = BatchState(MAX_SEQS, 4, 32, 16)
        self.graph: HostGraph = backend.make_graph(weights, cache.layers, self.batch, backend.make_arena())
        self.start({row: {"temperature": 0.0} for row in (1, 2, 3)})

    def start(self, params: dict[int, dict[str, object]]) -> None:
        """Start rows of sequences with these sampling parameters."""
        starts = tuple(
            RowStart(row, row, 0, RowSampling.of(SamplingParams(**given)), (), ()) for row, given in params.items()
        )
        self.batch.apply(StepPlan(1, Chunks(), (), (), row_starts=starts))

    def step(
        self,
        chunks: Sequence[Chunk],
        logit_rows: Sequence[int] = (),
        sampling_rows: Sequence[int] = (),
        **fields: object,
    ) -> Tensor:
        """The logits of a step in which the state rows `sampling_rows` (default: row 1) sample from `logit_rows`."""
        sampled = tuple(SampleRow(row, row) for row in sampling_rows or (1,) * len(logit_rows))
        plan = StepPlan(1, Chunks.of(chunks), tuple(logit_rows), sampled, **fields)
        return self.graph.run(self.batch.apply(plan))

    def logits(self, chunks: Sequence[Chunk], logit_rows: Sequence[int]) -> Tensor:
        """The logits of one step with new sequences."""
        return self.step(chunks, logit_rows, table_writes=TABLES)[: len(logit_rows)].clone()


@pytest.mark.parametrize(
    ("kind", "model"), [*product(GRAPHS, DTYPES), *(("recorded", name) for name in QUANTIZED)], ids=" ".join
)
def test_a_repeated_row_has_the_bits_of_a_single_one(kind: str, model: str):
    setup = GraphSetup(kind, model)
    (once,) = setup.logits(CHUNKS[:1], LAST_ROWS[:1])
    for count in (2, 8, 9, MAX_SEQS):
        assert all(torch.equal(row, once) for row in setup.logits(CHUNKS[:1], LAST_ROWS[:1] * count))
    singles = setup.logits(CHUNKS, LAST_ROWS)
    repeated = setup.logits(CHUNKS, [LAST_ROWS[which] for which in ORDER])
    assert torch.equal(singles[0], once)
    assert all(torch.equal(row, singles[which]) for row, which in zip(repeated, ORDER, strict=True))


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_graphs_agree_on_the_logits(dtype: str):
    eager, recorded = (GraphSetup(kind, dtype).logits(CHUNKS, LAST_ROWS) for kind in GRAPHS)
    tolerance = {"float32": 1e-5, "float16": 1e-2, "bfloat16": 5e-2}[dtype] * float(eager.max() - eager.min())
    assert torch.allclose(eager, recorded, rtol=0, atol=tolerance)


def test_no_gradients_are_kept():
    setup = GraphSetup("eager", "float32")
    forward, modes = setup.graph.decoder.forward, []
    setup.graph.decoder.forward = lambda *parts: modes.append(torch.is_inference_mode_enabled()) or forward(*parts)
    setup.step(CHUNKS, LAST_ROWS, table_writes=TABLES)
    assert modes == [True]


def test_an_eager_step_samples_no_tokens():
    assert GraphSetup("eager", "float32").graph.samples is None


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_recorded_step_samples_its_tokens(dtype: str):
    setup = GraphSetup("recorded", dtype)
    logits_RV = setup.step(CHUNKS, [LAST_ROWS[which] for which in ORDER], table_writes=TABLES)
    assert setup.graph.samples.token_ids(len(ORDER)) == logits_RV[: len(ORDER)].argmax(dim=1).tolist()


def test_each_token_is_sampled_with_the_parameters_of_its_state_row():
    """At the position after the token row's; rows sampled on the host have no token."""
    setup = GraphSetup("recorded", "float32")
    setup.start({4: {"seed": 4}, 5: {"use_beam_search": True, "beam_width": 2}, 6: {"seed": 4, "top_k": 1}})
    setup.step(CHUNKS, (15, 12, 12, 12, 14, 15), (1, 4, 5, 6, 4, 4), table_writes=TABLES)
    sampled = setup.graph.samples.token_ids(6)
    logits_RV = setup.step(CHUNKS, (12, 12), (6, 4), table_writes=TABLES)
    assert sampled[2] == -1
    assert [sampled[3], sampled[1]] == setup.graph.samples.token_ids(2)
    assert sampled[3] == int(logits_RV[0].argmax())
    assert len({sampled[1], sampled[4], sampled[5]}) > 1


def test_a_step_without_sampled_rows_is_run():
    """Its tokens are cached: later tokens have the same logits as in one step with them."""
    for kind in GRAPHS:
        setup = GraphSetup(kind, "float32")
        full = setup.logits(CHUNKS[:1], LAST_ROWS[:1])
        fresh = GraphSetup(kind, "float32")
        fresh.step([Chunk(1, 1, 0, CHUNKS[0].token_ids[:7])], table_writes=TABLES)
        rest_RV = fresh.step([Chunk(1, 1, 7, CHUNKS[0].token_ids[7:])], (5,))
        assert torch.equal(rest_RV[0], full[0])


def test_tokens_do_not_depend_on_the_number_of_threads():
    setup = GraphSetup("recorded", "float32")
    setup.start({row: {"seed": row} for row in range(1, 11)})
    before, results = torch.get_num_threads(), []
    try:
        for num_threads in (1, 2, 3, 64):
            torch.set_num_threads(num_threads)
            logits_RV = setup.step(CHUNKS, [LAST_ROWS[which] for which in ORDER], range(1, 11), table_writes=TABLES)
            results.append((setup.graph.samples.token_ids(len(ORDER)), logits_RV[: len(ORDER)].clone()))
    finally:
        torch.set_num_threads(before)
    assert len(set(results[0][0])) > 3
    assert all(token_ids == results[0][0] and torch.equal(logits_RV, results[0][1]) for token_ids, logits_RV in results)
