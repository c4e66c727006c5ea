"""The decoder computes only through `Ops` calls that write into the arena, so that graphs can capture it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from app.checkpoint.inspection import inspect
from app.checkpoint.spec import ExpertSpec
from app.config.settings import ModelConfig
from app.engine.execute.kv_cache import KVCache, KVLayout
from app.kernels.cpu.torch_ops import TorchOps
from app.kernels.ops import ExpertWeights, LinearWeight, PagedBatch, Routes
from app.models.decoder import Arena, Decoder
from app.models.file_source import FileSource
from app.models.loader import load_weights
from app.models.rope import rope_tables
from tests.checkpoints import ARCHITECTURES, tiny
from tests.kernels.reference import ReferenceOps

VIEWS = {"aten.view", "aten.slice", "aten.alias", "aten.detach", "aten._unsafe_view", "aten.t", "aten.transpose"}
LAYER = ["linear", "qk_norm_rope_kv_write", "paged_attention", "linear", "add_rms_norm", "linear", "silu_mul",
         "linear", "add_rms_norm"]  # fmt: skip

ATTENTION = ["qk_norm_rope_kv_write", "paged_attention", "linear"]
ADD_NORM = ["rms_norm", "add_rms_norm"]
OTHER_STEPS = {
    "Gemma2": (
        ["embed", "rms_norm"],
        ["linear", *ATTENTION, *ADD_NORM, "linear", "gelu_mul", "linear", *ADD_NORM],
        ["gather_rows", "logits", "softcap"],
    ),
    "Olmo2": (
        ["embed", "embed"],
        ["linear", "rms_norm", "rms_norm", *ATTENTION, *ADD_NORM, "linear", "silu_mul", "linear", *ADD_NORM],
        ["gather_rows", "logits"],
    ),
}
"""The operations before the layers, of each layer, and after them."""


EXPERTS = [*LAYER[:5], "route", "expert_gate_up", "linear", "silu_mul", "linear", "expert_down", "add_rms_norm"]
Given = Tensor | LinearWeight | ExpertWeights | Routes | ExpertSpec | float | int | None


def tensors_of(parts: object) -> list[Tensor]:
    """All tensors of an arena, or of a part of it."""
    found: list[Tensor] = []
    for part in (getattr(parts, name) for name in parts.__slots__):
        if part is not None:
            found += [part] if isinstance(part, Tensor) else tensors_of(part)
    return found


class RecordingOps:
    """Ops that compute nothing: records each call and checks that it writes into the arena."""

    def __init__(self, arena: Arena) -> None:
        self.calls: list[str] = []
        self._arena = {tensor.untyped_storage().data_ptr() for tensor in tensors_of(arena)}

    def begin_step(self, batch: PagedBatch) -> None:
        """Do nothing."""

    def __getattr__(self, name: str):
        assert hasattr(TorchOps, name), f"{name} is no operation of Ops"

        def record(*arguments: object, out: Tensor | Routes) -> None:
            self.calls.append(name)
            for tensor in (out,) if isinstance(out, Tensor) else tensors_of(out):
                assert tensor.untyped_storage().data_ptr() in self._arena, f"{name} writes outside the arena"
            for argument in arguments:
                assert isinstance(argument, Given), f"{name} is given {argument!r}"

        return record


class OnlyViews(TorchDispatchMode):
    """Raises for every torch operation that is not a view."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = str(func.overloadpacket)
        assert name in VIEWS, f"the model computed on a tensor without Ops: {name}"
        result = func(*args, **(kwargs or {}))
        assert result.untyped_storage().data_ptr() == args[0].untyped_storage().data_ptr(), f"{name} made a copy"
        return result


@contextmanager
def model(architecture: str, num_tokens: int, num_logit_rows: int, **fields: object) -> Iterator[tuple]:
    """A loaded decoder without ops, its arena, its cache and the inputs of one step."""
    files = inspect(ModelConfig(model=str(tiny(architecture, **fields)), dtype="float32"))
    spec = files.spec
    with FileSource(files) as source:
        weights = load_weights(spec, source)
    arena = Arena.allocate(spec, num_tokens, num_logit_rows, torch.float32).first(num_tokens, num_logit_rows)
    layout = KVLayout(16, spec.num_layers, spec.num_kv_heads, spec.head_dim, torch.float32)
    ids_T = torch.arange(10, 10 + num_tokens)
    logit_rows_R = torch.arange(num_logit_rows)
    yield spec, weights, arena, KVCache(layout, 8), ids_T, logit_rows_R


@pytest.mark.parametrize("architecture", [*ARCHITECTURES, "Qwen2Moe"])
def test_the_model_computes_through_ops_only(architecture: str):
    with model(architecture, 16, 8) as (spec, weights, arena, cache, ids_T, logit_rows_R):
        ops = RecordingOps(arena)
        decoder = Decoder(spec, weights, rope_tables(spec, 64, torch.float32), ops)
        with OnlyViews():
            logits = decoder.forward(ids_T, logit_rows_R, cache.layers, arena)
        assert logits.data_ptr() == arena.logits_RV.data_ptr()
        layer = EXPERTS if spec.experts else LAYER
        assert ops.calls == ["embed", "rms_norm", *layer * spec.num_layers, "gather_rows", "logits"]


@pytest.mark.parametrize("architecture", OTHER_STEPS)
def test_models_that_normalize_elsewhere_compute_through_ops_only_too(architecture: str):
    before, layer, after = OTHER_STEPS[architecture]
    with model(architecture, 16, 8) as (spec, weights, arena, cache, ids_T, logit_rows_R):
        ops = RecordingOps(arena)
        decoder = Decoder(spec, weights, rope_tables(spec, 64, torch.float32), ops)
        with OnlyViews():
            decoder.forward(ids_T, logit_rows_R, cache.layers, arena)
        assert ops.calls == [*before, *layer * spec.num_layers, *after]


def test_only_views_detects_arithmetic_and_copies():
    tensor = torch.zeros(4)
    with OnlyViews():
        tensor[1:3].view(2, 1)
        for compute in (
            lambda: tensor + 1,
            lambda: tensor.clone(),
            lambda: tensor.float().add_(1),
            lambda: tensor[[0]],
        ):
            with pytest.raises(AssertionError):
                compute()


@pytest.mark.parametrize("architecture", [*ARCHITECTURES, "Qwen2Moe"])
def test_eager_ops_compute_what_reference_ops_compute(architecture: str):
    """A step of one prompt of 13 tokens with all logits, in float32; the two add in different orders."""
    results = []
    for ops in (ReferenceOps(), TorchOps()):
        with model(architecture, 16, 16, sliding_window=5, use_sliding_window=True, max_window_layers=1) as parts:
            spec, weights, arena, cache, ids_T, logit_rows_R = parts
            positions_T = torch.cat([torch.arange(13), torch.zeros(3, dtype=torch.int64)])
            tables = torch.tensor([[0, 0], [3, 0]], dtype=torch.int32)
            state_rows_T = (torch.arange(16) < 13).long()
            ops.begin_step(PagedBatch(13, positions_T, state_rows_T, tables, 16))
            decoder = Decoder(spec, weights, rope_tables(spec, 64, torch.float32), ops)
            results.append(decoder.forward(ids_T, logit_rows_R, cache.layers, arena)[:13].clone())
    torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-4)


def test_the_arena_pads_token_rows_and_logit_rows():
    with model("Llama", 8, 8) as (spec, *_):
        arena = Arena.allocate(spec, 9, 3, torch.bfloat16)
    assert arena.hidden_TD.shape == (16, spec.hidden_size) and arena.hidden_TD.dtype == torch.bfloat16
    assert arena.logits_RV.shape == (8, spec.vocab_size) and arena.logits_RV.dtype == torch.float32
    part = arena.first(8, 8)
    assert {len(tensor) for tensor in tensors_of(part)} == {8}
    assert part.qkv_TX.data_ptr() == arena.qkv_TX.data_ptr()
