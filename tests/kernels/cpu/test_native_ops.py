"""The model on native kernels: as a recorded program, operation by operation, and compared with the reference.

Bounds on the relative error of all logits of some steps (norm of the difference over the norm) allow for: another order
of sums for float32 and float16 weights; activations with 8 bits of mantissa for bfloat16 and int4; activations, or keys
and values, of 8 bits with a scale for int8.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import Tensor

from app.checkpoint.inspection import inspect
from app.checkpoint.model_files import ModelFiles
from app.checkpoint.spec import Activation, BlockNorms, ModelSpec, QKNorm
from app.config.settings import Config, make_config
from app.engine.execute.cpu.backend import NativeBackend
from app.engine.execute.cpu.batch import BatchState
from app.engine.execute.cpu.graph import EagerGraph, HostGraph, RecordedGraph
from app.engine.execute.kv_cache import KVCache, KVLayout
from app.engine.schedule.step_plan import Chunk, Chunks, StepPlan, TableWrite
from app.kernels.cpu.library import NativeLibrary, load_library
from app.kernels.cpu.native_ops import NativeOps, QuantizedRows, Recorder
from app.kernels.cpu.packers import PanelPacker
from app.kernels.cpu.records import Code
from app.kernels.ops import LinearWeight
from app.models.decoder import Arena, Decoder
from app.models.file_source import FileSource
from app.models.loader import load_weights
from app.models.rope import rope_tables
from app.models.weights import DecoderWeights, LayerWeights, Packer
from tests.checkpoints import tiny
from tests.kernels.batches import noise
from tests.kernels.reference import ReferenceOps

MODELS: dict[str, tuple[str, dict[str, object]]] = {
    "llama": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "tied": (
        "Llama",
        {"tie_word_embeddings": True, "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 24},
    ),
    "window": ("Mistral", {"sliding_window": 19, "head_dim": 80, "hidden_size": 40}),
    "qwen2": ("Qwen2", {"vocab_size": 293, "intermediate_size": 90}),
    "qwen3": ("Qwen3", {"num_key_value_heads": 4}),
    "capped": ("Qwen3", {"head_dim": 256}),
    "normed after": ("Llama", {"num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 24}),
    "experts": ("Qwen2Moe", {"mlp_only_layers": [1]}),
}
# Of models that get norms which their files lack: the fields of their specs that differ.
CHANGES: dict[str, dict[str, object]] = {
    "capped": {
        "block_norms": BlockNorms.BOTH,
        "activation": Activation.GELU_TANH,
        "attention_softcap": 0.5,
        "logit_softcap": 0.7,
    },
    "normed after": {"block_norms": BlockNorms.AFTER, "qk_norm": QKNorm.WHOLE},
}
DTYPES = ("float32", "bfloat16", "float16")
# (dtype, quantization, KV cache): the relative error that logits may have.
BOUNDS = {
    ("float32", None, "auto"): 2e-6,
    ("float16", None, "auto"): 5e-5,  # a key or value may be rounded in the other direction
    ("bfloat16", None, "auto"): 0.02,
    ("float32", None, "int8"): 0.03,
    ("bfloat16", None, "int8"): 0.03,
    ("float32", "int8", "auto"): 0.05,
    ("bfloat16", "int8", "int8"): 0.06,
    ("bfloat16", "int4", "auto"): 0.02,
    ("float32", "int4", "auto"): 0.02,
}
FEW_BOUNDS = (("float32", None, "auto"), ("bfloat16", None, "auto"), ("bfloat16", "int8", "int8"))
LOGIT_CASES = [(name, each) for name in MODELS for each in (FEW_BOUNDS if name in CHANGES else BOUNDS)]
# Every format with some model, and every model in some format.
BATCH_CASES = [
    *((list(MODELS)[number % 5], number_format) for number, number_format in enumerate(BOUNDS)),
    *((name, ("bfloat16", None, "auto")) for name in MODELS if name != "window"),
]
MAX_TOKENS, MAX_SEQS, MAX_BLOCKS = 96, 8, 8
A, B, C = (tuple((7 * index + 11 * name) % 280 + 4 for index in range(80)) for name in (1, 2, 3))
Part = tuple[tuple[int, ...], int, int]  # the tokens of a sequence, and the range that a step computes
# A prompt; a decode beside a chunk of a prompt; decodes and the rest of that prompt; three decodes.
STEPS: tuple[tuple[Part, ...], ...] = (
    ((A, 0, 33),),
    ((A, 33, 34), (B, 0, 17)),
    ((A, 34, 35), (B, 17, 40), (C, 0, 1)),
    ((C, 1, 2), (A, 35, 36), (B, 40, 41)),
)


def name_of(number_format: tuple) -> str:
    return "-".join(map(str, number_format))


class UnpackedPacker:
    """Unpacks the weights of the kernels to float32 matrices."""

    takes_stored = False

    def __init__(self, quantization: str | None) -> None:
        self._packer = PanelPacker(quantization)

    def linear(self, weight: LinearWeight, *, is_gated: bool = False) -> LinearWeight:
        bias = None if weight.bias is None else weight.bias.float()
        return LinearWeight(self._packer.linear(weight, is_gated=is_gated).unpacked(), bias)

    def head(self, weight: LinearWeight) -> LinearWeight:
        return LinearWeight(self._packer.head(weight).unpacked())

    def tied(self, table: LinearWeight) -> tuple[LinearWeight, LinearWeight]:
        return LinearWeight(table.weight.float()), self.head(table)


def config_of(name: str, dtype: str, quantization: str | None, kv_cache_dtype: str = "auto") -> Config:
    architecture, fields = MODELS[name]
    folder = tiny(architecture, torch_dtype=dtype, **fields)
    limits = {"max_num_seqs": MAX_TOKENS, "max_num_batched_tokens": MAX_TOKENS, "max_model_len": 16 * MAX_BLOCKS}
    quantized = {"quantization": quantization, "kv_cache_dtype": kv_cache_dtype}
    return make_config({"model": str(folder), **limits, **quantized})


@cache
def weights_of(name: str, dtype: str, quantization: str | None, *, is_packed: bool) -> DecoderWeights:
    files = inspect(config_of(name, dtype, quantization).model)
    packer: Packer = PanelPacker(quantization) if is_packed else UnpackedPacker(quantization)
    with FileSource(files) as source:
        weights = load_weights(files.spec, source, packer=packer)
    return with_norms(weights, spec_of(name, files)) if name in CHANGES else weights


def spec_of(name: str, files: ModelFiles) -> ModelSpec:
    return replace(files.spec, **CHANGES.get(name, {}))


def with_norms(weights: DecoderWeights, spec: ModelSpec) -> DecoderWeights:
    """The weights with random norms where the spec has some, and without the others."""
    has_inputs = spec.block_norms is BlockNorms.BOTH
    places = ("attention_norm", "mlp_norm") + (("input_norm", "mlp_input_norm") if has_inputs else ())
    qk_size = spec.q_size + spec.kv_size

    def changed(index: int, layer: LayerWeights) -> LayerWeights:
        norms: dict[str, Tensor | None] = {"input_norm": None, "mlp_input_norm": None}
        for seed, place in enumerate(places, 10 * index):
            norms[place] = 1 + 0.3 * noise(spec.hidden_size, seed=seed)
        if spec.qk_norm is QKNorm.WHOLE:
            norms["qk_norm"] = 1 + 0.3 * noise(qk_size, seed=10 * index + 4)
        return replace(layer, **norms)

    return replace(weights, layers=tuple(changed(*numbered) for numbered in enumerate(weights.layers)))


class Model:
    """A tiny model in one of three forms: `recorded`, `single` operations, or the `reference`."""

    def __init__(
        self,
        library: NativeLibrary,
        name: str,
        form: str,
        dtype: str = "float32",
        quantization: str | None = None,
        kv_cache_dtype: str = "auto",
    ) -> None:
        config = config_of(name, dtype, quantization, kv_cache_dtype)
        self.spec = spec_of(name, inspect(config.model))
        backend = NativeBackend(config, self.spec, library)
        weights = weights_of(name, dtype, quantization, is_packed=form != "reference")
        layout = backend.kv_layout()
        self.cache = KVCache(layout, MAX_BLOCKS * MAX_SEQS, 0, backend.ops)
        self._batch = BatchState(MAX_TOKENS, MAX_BLOCKS, MAX_TOKENS, 16)
        self._rows: dict[tuple[int, ...], int] = {}
        self.graph: HostGraph
        if form == "recorded":
            self.graph = backend.make_graph(weights, self.cache.layers, self._batch, backend.make_arena())
        elif form == "single":
            self.graph = self._eager(weights, NativeOps(library), backend.make_arena(), self.cache)
        else:
            exact = layout.dtype == torch.int8
            reference_cache = KVCache(_plain_layout(layout), MAX_BLOCKS * MAX_SEQS) if exact else self.cache
            arena = Arena.allocate(self.spec, MAX_TOKENS, MAX_TOKENS, torch.float32)
            self.graph = self._eager(weights, ReferenceOps(), arena, reference_cache)

    def step(self, *parts: Part) -> list[Tensor]:
        """Compute a range of tokens of each sequence; return the logits of each part's rows, [rows, V]."""
        chunks, writes = [], []
        for tokens, begin, end in parts:
            if tokens not in self._rows:
                row = self._rows[tokens] = len(self._rows) + 1
                blocks = range(MAX_BLOCKS * row, MAX_BLOCKS * (row - 1), -1)  # in descending order
                writes.append(TableWrite(row, 0, tuple(blocks)))
            chunks.append(Chunk(self._rows[tokens], self._rows[tokens], begin, tokens[begin:end]))
        counts = [end - begin for _, begin, end in parts]
        plan = StepPlan(1, Chunks.of(chunks), tuple(range(sum(counts))), (), table_writes=tuple(writes))
        logits_RV = self.graph.run(self._batch.apply(plan))[: sum(counts)]
        return [logits.clone() for logits in logits_RV.split(counts)]

    def all_steps(self) -> Tensor:
        """The logits of all rows of STEPS."""
        return torch.cat([logits for parts in STEPS for logits in self.step(*parts)])

    def _eager(self, weights: DecoderWeights, ops: NativeOps | ReferenceOps, arena: Arena, cache: KVCache) -> HostGraph:
        ropes = rope_tables(self.spec, 16 * MAX_BLOCKS, torch.float32)
        return EagerGraph(Decoder(self.spec, weights, ropes, ops), cache.layers, arena)


def _plain_layout(layout: KVLayout) -> KVLayout:

    return replace(layout, head_dim=layout.head_dim - 4, dtype=torch.float32)


@cache
def reference(name: str, dtype: str, quantization: str | None, kv_cache_dtype: str) -> Tensor:
    """The expected logits of STEPS."""
    native = load_library()
    assert native is not None
    return Model(native, name, "reference", dtype, quantization, kv_cache_dtype).all_steps()


def relative_error(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


@pytest.mark.parametrize(
    ("name", "number_format"), LOGIT_CASES, ids=lambda each: each if each in MODELS else name_of(each)
)
def test_logits_are_those_of_the_reference(name: str, number_format: tuple, library: NativeLibrary):
    expected = reference(name, *number_format)
    for form in ("recorded", "single"):
        found = Model(library, name, form, *number_format).all_steps()
        assert relative_error(found, expected) < BOUNDS[number_format]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("name", MODELS)
def test_fused_records_give_the_bits_of_single_operations(name: str, dtype: str, library: NativeLibrary):
    """For formats that store activations as computed; bfloat16 rows are rounded between single operations."""
    recorded, single = (Model(library, name, form, dtype).all_steps() for form in ("recorded", "single"))
    assert torch.equal(recorded, single)


@pytest.mark.parametrize(
    ("name", "number_format"), BATCH_CASES, ids=lambda each: each if each in MODELS else name_of(each)
)
def test_logits_do_not_depend_on_the_batch(name: str, number_format: tuple, library: NativeLibrary):
    """Bitwise: one prompt at once, in chunks, token by token, in a batch, and on any number of threads."""
    alone = torch.cat(Model(library, name, "recorded", *number_format).step((A, 0, 44)))
    schedules: list[Sequence[tuple[Part, ...]]] = [
        [((A, index, index + 1),) for index in range(44)],
        [((A, 0, 1),), ((A, 1, 17),), ((A, 17, 18), (B, 0, 60)), ((C, 0, 7), (A, 18, 44), (B, 60, 62))],
        [((C, 0, 50), (A, 0, 30), (B, 0, 1)), ((C, 50, 51), (B, 1, 2), (A, 30, 44))],
    ]
    for number, steps in enumerate(schedules):
        torch.set_num_threads(number + 1)
        model = Model(library, name, "recorded", *number_format)
        found = [
            logits for parts in steps for part, logits in zip(parts, model.step(*parts), strict=True) if part[0] is A
        ]
        assert torch.equal(torch.cat(found), alone), f"schedule {number}"


def test_a_step_without_rows_does_nothing(library: NativeLibrary):
    model = Model(library, "llama", "recorded")
    (before,) = model.step((A, 0, 20))
    model.step()
    assert torch.equal(torch.cat(model.step((A, 0, 20))), before)


def test_a_program_has_only_the_necessary_records(library: NativeLibrary):
    """Records that can be fused with the previous one are left out."""
    layer = [Code.LINEAR, Code.ROTATE, Code.ATTENTION, Code.ATTENTION_MERGE, Code.LINEAR, Code.NORM]
    mlp = [Code.LINEAR, Code.LINEAR, Code.NORM]
    plain = [Code.EMBED, Code.NORM, *(layer + mlp) * 2, Code.GATHER, Code.LINEAR, Code.SAMPLE]
    graph = Model(library, "llama", "recorded").graph
    assert isinstance(graph, RecordedGraph) and list(graph._program.codes) == plain
    graph = Model(library, "capped", "recorded").graph
    own = [Code.NORM, Code.ADD, Code.NORM]  # of what a block adds, the sum, and the next block's
    capped = [*(layer[:-1] + own + mlp[:-1] + own) * 2, Code.GATHER, Code.LINEAR, Code.SOFTCAP, Code.SAMPLE]
    assert isinstance(graph, RecordedGraph) and list(graph._program.codes) == [Code.EMBED, Code.NORM, *capped]
    graph = Model(library, "llama", "recorded", "bfloat16", "int8").graph
    assert isinstance(graph, RecordedGraph)
    # Attention, the activation and the rows for the output layer are quantized separately; norms do it themselves.
    assert [code for code in graph._program.codes if code is not Code.QUANTIZE] == plain
    assert graph._program.codes.count(Code.QUANTIZE) == 2 * 2 + 1


def test_padding_of_a_step_is_not_written_to_the_cache(library: NativeLibrary):
    model = Model(library, "qwen3", "recorded")
    model.step((A, 0, 3))
    for keys, values in model.cache.layers:
        touched = keys.flatten(1).any(1) | values.flatten(1).any(1)
        assert touched.nonzero().flatten().tolist() == [MAX_BLOCKS]


def test_a_program_keeps_all_memory_of_quantized_rows(library: NativeLibrary, monkeypatch: pytest.MonkeyPatch):
    """Also what was too small for a later product of more rows: the records before have its bare address."""
    made, allocate = [], QuantizedRows.allocate

    def recording(*sizes: int) -> QuantizedRows:
        rows = allocate(*sizes)
        made.extend((weakref.ref(rows.integers), weakref.ref(rows.groups)))
        return rows

    monkeypatch.setattr(QuantizedRows, "allocate", recording)
    recorder = Recorder(library)
    weight = PanelPacker("int8").linear(LinearWeight(torch.randn(64, 64)))
    x_TD, out = torch.randn(5, 64), torch.empty(5, 64)
    for num_rows in (2, 5):
        recorder.linear(x_TD[:num_rows], weight, out=out[:num_rows])
    program = recorder.program()
    del recorder
    gc.collect()
    assert len(made) == 4 and all(reference() is not None for reference in made)
    assert program.codes.count(Code.QUANTIZE) == 2
