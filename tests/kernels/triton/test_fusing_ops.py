"""A decoder with fused products gives the same logits, with six launches per layer instead of nine."""

from __future__ import annotations

import inspect as signatures
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from app.checkpoint.inspection import inspect
from app.checkpoint.spec import Activation, BlockNorms, LayerSpec, QKNorm
from app.config.settings import ModelConfig
from app.kernels.ops import LinearWeight, Ops, PagedBatch
from app.kernels.triton import fusing_ops
from app.kernels.triton.attention.paged_attention import PagedAttention
from app.kernels.triton.fusing_ops import FusingOps
from app.kernels.triton.layers import matvec
from app.kernels.triton.triton_ops import CublasProducts, TritonOps
from app.models.decoder import Arena, Decoder
from app.models.file_source import FileSource
from app.models.loader import TensorSource, load_weights
from app.models.rope import rope_tables
from tests.checkpoints import tiny
from tests.kernels.batches import Heads, noise
from tests.kernels.reference import ReferenceOps
from tests.kernels.triton.batches import DEVICE, device_batch
from tests.models.saved_models import saved

DEVICE_0 = torch.device(DEVICE)
FUSED = ("linear", "linear_add", "norm_linear", "norm_gate_up")


# What a spec may say besides, all of it in use: as in Gemma, Gemma 2, Gemma 3, OLMo 2, OLMoE and Ministral 3.
GEMMA = {"activation": Activation.GELU_TANH, "norm_offset": 1.0, "embedding_scale": 3.5}
SANDWICH = GEMMA | {"block_norms": BlockNorms.BOTH, "layers": (LayerSpec(5), LayerSpec()), "attention_scale": 0.4}
CHANGES: dict[str, dict[str, object]] = {
    "gemma": GEMMA | {"qk_norm": QKNorm.NONE},
    "gemma2": SANDWICH | {"qk_norm": QKNorm.NONE, "attention_softcap": 0.7, "logit_softcap": 0.9},
    "gemma3": SANDWICH,
    "olmo2": {"block_norms": BlockNorms.AFTER, "qk_norm": QKNorm.WHOLE},
    "olmoe": {"qk_norm": QKNorm.WHOLE},
    "ministral3": {"qk_norm": QKNorm.NONE},
}


class NoiseSource(TensorSource):
    """Weights, norms and biases, all random."""

    def __init__(self) -> None:
        self._seed = 0

    def read(self, name: str, out: Tensor) -> None:
        """Fill `out`; the mean of the weights of norms is not 0."""
        self._seed += 1
        values = noise(*out.shape, seed=self._seed)
        out.copy_(0.5 + values / 4 if "norm" in name else values / out.shape[-1] ** 0.5)


class DecoderSetup:
    """A tiny decoder, of `folder` or of an architecture, and a step of `num_rows` decoding sequences.

    With `changes` of the spec it has random weights.
    """

    def __init__(
        self,
        num_rows: int,
        architecture: str = "Qwen3",
        folder: Path | None = None,
        changes: Mapping[str, object] | None = None,
        **fields: object,
    ) -> None:
        files = inspect(ModelConfig(model=str(folder or tiny(architecture, **fields))))
        spec = self.spec = replace(files.spec, **(changes or {}))  # type: ignore[arg-type]
        self.query_scale_P: Tensor | None = None
        with FileSource(files) as source:
            self.weights = load_weights(
                spec,
                source if changes is None else NoiseSource(),
                allocate=lambda *shape, dtype: torch.empty(shape, dtype=dtype).to(DEVICE_0),
            )
        self.heads = Heads(spec.num_heads, spec.num_kv_heads, spec.head_dim)
        self.batch, self.step = device_batch([(3 + 7 * row, 1) for row in range(num_rows)], self.heads)
        self.caches = [tuple(noise(*cache.shape, seed=seed).to(DEVICE_0) for cache in self.step.caches())
                       for seed in range(spec.num_layers)]  # fmt: skip

    def ops(self, kind: type[TritonOps]) -> TritonOps:
        attention = PagedAttention(
            DEVICE_0,
            num_heads=self.spec.num_heads,
            num_kv_heads=self.spec.num_kv_heads,
            head_dim=self.spec.head_dim,
            dtype=torch.float32,
            cache_dtype=torch.float32,
            max_rows=8,
            max_context=128,
            num_processors=4,
            capability=(9, 0),
            is_deterministic=False,
        )
        return kind(CublasProducts(), attention, *((8,) if kind is FusingOps else ()))

    def logits(self, ops: Ops, batch: PagedBatch | None = None) -> Tensor:
        ropes = rope_tables(self.spec, 100, torch.float32, DEVICE_0)
        arena = Arena.allocate(self.spec, 8, 8, torch.float32, device=DEVICE_0)
        ops.begin_step(batch or self.batch)
        count = self.batch.num_tokens
        rows = torch.arange(count, dtype=torch.int32, device=DEVICE_0)
        decoder = Decoder(self.spec, self.weights, ropes, ops, self.query_scale_P)
        caches = [tuple(cache.clone() for cache in pair) for pair in self.caches]
        return decoder.forward(rows + 5, rows, caches, arena.first(count, count)).clone()


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """The number of launches of each fused product."""
    counts: Counter[str] = Counter()
    for name in FUSED:
        launch = getattr(matvec, name)

        def counted(*given: object, launch=launch, name=name, **named: object) -> None:
            counts[name] += 1
            launch(*given, **named)

        monkeypatch.setattr(fusing_ops.matvec, name, counted)
    return counts


@pytest.mark.parametrize("num_rows", [1, 3])
def test_a_fused_decoder_gives_the_same_logits(num_rows, launches):
    setup = DecoderSetup(num_rows)
    expected = setup.logits(setup.ops(TritonOps))
    assert not launches
    torch.testing.assert_close(setup.logits(setup.ops(FusingOps)), expected, rtol=1e-4, atol=1e-4)
    layers = setup.spec.num_layers
    assert launches == {"norm_linear": layers + 1, "linear_add": 2 * layers, "norm_gate_up": layers}


@pytest.mark.parametrize(
    ("name", "kind"), [("phi4-mini", TritonOps), ("smollm3-window", TritonOps), ("granite", FusingOps)]
)
def test_ropes_and_scales_of_each_architecture_are_those_of_the_reference(name, kind):
    setup = DecoderSetup(2, folder=saved(name)[0])
    if DEVICE_0.type == "cuda":
        pytest.skip("the reference computes on the host")
    expected = setup.logits(ReferenceOps(), setup.step.batch)
    torch.testing.assert_close(setup.logits(setup.ops(kind)), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", [TritonOps, FusingOps])
@pytest.mark.parametrize("name", CHANGES)
def test_norms_activations_caps_and_scales_of_queries_are_those_of_the_reference(name, kind):
    setup = DecoderSetup(2, changes=CHANGES[name])
    if DEVICE_0.type == "cuda":
        pytest.skip("the reference computes on the host")
    if name == "ministral3":
        setup.query_scale_P = 1 + torch.log1p(torch.arange(100) // 8)
    expected = setup.logits(ReferenceOps(), setup.step.batch)
    torch.testing.assert_close(setup.logits(setup.ops(kind)), expected, rtol=1e-4, atol=1e-4)


def test_gelu_is_fused_as_silu_is(launches):
    setup = DecoderSetup(2, changes=CHANGES["gemma"])
    setup.logits(setup.ops(FusingOps))
    layers = setup.spec.num_layers
    assert launches == {"norm_linear": layers + 1, "linear_add": 2 * layers, "norm_gate_up": layers}


@pytest.mark.parametrize("implementation", [TritonOps, FusingOps])
def test_every_operation_has_the_signature_of_the_protocol(implementation):
    for name, method in signatures.getmembers(Ops, signatures.isfunction):
        if not name.startswith("_"):
            assert signatures.signature(getattr(implementation, name)) == signatures.signature(method), name


def test_biases_of_the_mlp_leave_its_activation_unfused(launches):
    setup = DecoderSetup(2, "Llama", mlp_bias=True)
    expected = setup.logits(setup.ops(TritonOps))
    torch.testing.assert_close(setup.logits(setup.ops(FusingOps)), expected, rtol=1e-4, atol=1e-4)
    assert not launches["norm_gate_up"] and launches["norm_linear"] == 2 * setup.spec.num_layers + 1


def test_steps_of_many_rows_or_with_prompts_are_not_fused(launches):
    setup = DecoderSetup(9)
    ops = setup.ops(FusingOps)
    ops.begin_step(setup.batch)
    x, out = noise(9, 64).to(DEVICE_0), torch.empty(9, 64, device=DEVICE_0)
    ops.linear(x, LinearWeight(noise(64, 64, seed=1).to(DEVICE_0)), out=out)
    chunked, _ = device_batch([(0, 2)], setup.heads, work=ops._attention.mixed_work)
    ops.begin_step(chunked)
    ops.linear(x[:2], LinearWeight(noise(64, 64, seed=1).to(DEVICE_0)), out=out[:2])
    assert not launches
    torch.testing.assert_close(out, x @ noise(64, 64, seed=1).to(DEVICE_0).T, rtol=1e-4, atol=1e-4)


class ProductsSetup:
    """Three rows, and the weights of products and a norm."""

    def __init__(self) -> None:
        self.setup = DecoderSetup(3)
        self.ops = self.setup.ops(FusingOps)
        self.ops.begin_step(self.setup.batch)
        self.x, self.residual = noise(3, 64).to(DEVICE_0), noise(3, 64, seed=2).to(DEVICE_0)
        self.norm = noise(64, seed=3).to(DEVICE_0)
        self.weights = [LinearWeight(noise(64, 64, seed=seed).to(DEVICE_0)) for seed in (4, 5)]

    def normed(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * self.norm

    def read(self, x: Tensor) -> Tensor:
        """Read the rows with another operation."""
        self.ops._catch_up(x)
        return x.clone()


def test_a_norm_read_by_two_products_and_another_operation_is_computed():
    step = ProductsSetup()
    hidden, outs = torch.empty_like(step.x), [torch.empty_like(step.x) for _ in range(2)]
    step.ops.rms_norm(step.x, step.norm, 1e-5, out=hidden)
    for weight, out in zip(step.weights, outs, strict=True):
        step.ops.linear(hidden, weight, out=out)
    got = step.read(hidden)
    expected = step.normed(step.x)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
    for weight, out in zip(step.weights, outs, strict=True):
        torch.testing.assert_close(out, expected @ weight.weight.T, rtol=1e-4, atol=1e-3)


def test_a_norm_in_place_is_not_delayed():
    """Nor is that of some columns: the next operation reads them all."""
    step = ProductsSetup()
    wide, hidden = torch.empty(3, 128, device=DEVICE_0), torch.empty_like(step.x)
    weight = LinearWeight(noise(128, 64, seed=4).to(DEVICE_0))
    step.ops.linear(step.x, weight, out=wide)
    halves = wide.split(64, dim=1)
    for half in halves:
        step.ops.rms_norm(half, step.norm, 1e-5, out=half)
    step.ops.silu_mul(wide, out=hidden)
    expected = [step.normed(half) for half in (step.x @ weight.weight.T).split(64, dim=1)]
    torch.testing.assert_close(wide, torch.cat(expected, 1), rtol=1e-4, atol=1e-4)
    silu = torch.nn.functional.silu(expected[0]) * expected[1]
    torch.testing.assert_close(hidden, silu, rtol=1e-4, atol=1e-4)
    step.ops.linear(step.x, step.weights[0], out=hidden)
    step.ops.rms_norm(hidden, step.norm, 1e-5, out=hidden)
    torch.testing.assert_close(hidden, step.normed(step.x @ step.weights[0].weight.T), rtol=1e-4, atol=1e-4)


def test_a_sum_without_a_norm_is_read_by_the_next_product():
    step = ProductsSetup()
    hidden, out = torch.empty_like(step.x), torch.empty_like(step.x)
    step.ops.linear(step.x, step.weights[0], out=hidden)
    expected = step.residual + step.x @ step.weights[0].weight.T
    step.ops.add_rms_norm(hidden, step.residual, None, 1e-5, out=hidden)
    step.ops.linear(hidden, step.weights[1], out=out)
    torch.testing.assert_close(step.read(out), expected @ step.weights[1].weight.T, rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(step.residual, expected, rtol=1e-4, atol=1e-4)


def test_a_delayed_norm_uses_the_values_at_its_call():
    step = ProductsSetup()
    first, second = torch.empty_like(step.x), torch.empty_like(step.x)
    before = step.residual.clone()
    step.ops.rms_norm(step.residual, step.norm, 1e-5, out=first)
    step.ops.add_rms_norm(step.x, step.residual, step.norm, 1e-5, out=second)
    torch.testing.assert_close(step.read(first), step.normed(before), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(step.read(second), step.normed(before + step.x), rtol=1e-4, atol=1e-4)


def test_a_product_may_overwrite_the_output_of_a_fused_norm():
    step = ProductsSetup()
    hidden, out = torch.empty_like(step.x), torch.empty_like(step.x)
    step.ops.rms_norm(step.x, step.norm, 1e-5, out=hidden)
    step.ops.linear(hidden, step.weights[0], out=out)
    step.ops.linear(out, step.weights[1], out=hidden)
    expected = step.normed(step.x) @ step.weights[0].weight.T @ step.weights[1].weight.T
    torch.testing.assert_close(step.read(hidden), expected, rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize("num_rows", [1, 3])
def test_the_logits_of_a_decode_step_are_a_product_of_the_rows_themselves(num_rows, launches):
    """Nothing gathers all rows in their order, fused or not."""
    setup = DecoderSetup(num_rows)
    for max_rows, launched in ((8, 1), (0, 0)):
        ops = setup.ops(FusingOps)
        ops._max_rows = max_rows
        ops.begin_step(setup.batch)
        x, weight = noise(num_rows, 64, seed=1).to(DEVICE_0), noise(50, 64, seed=2).to(DEVICE_0)
        norm, hidden, nowhere = noise(64, seed=3).to(DEVICE_0), torch.empty_like(x), torch.full_like(x, float("nan"))
        out = torch.full((num_rows, 50), float("nan"), device=DEVICE_0)
        ops.rms_norm(x, norm, 1e-5, out=hidden)
        launches.clear()
        ops.gather_rows(hidden, torch.arange(num_rows, dtype=torch.int32, device=DEVICE_0), out=nowhere)
        ops.logits(nowhere, LinearWeight(weight), out=out)
        expected = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * norm @ weight.T
        torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-3)
        assert nowhere.isnan().all() and launches["norm_linear"] == launched
