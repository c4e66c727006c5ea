"""The selected backend is the fastest that machine and settings allow; all backends give the same outputs."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch

from app import LLM, SamplingParams
from app.checkpoint.inspection import inspect
from app.checkpoint.model_files import ModelFiles
from app.config.devices import NO_EXPERTS
from app.config.settings import Config, make_config
from app.contract.errors import CannotStart, ConfigurationError
from app.engine.execute import selection
from app.engine.execute.cpu.backend import EagerBackend, NativeBackend
from app.engine.execute.selection import select_backend
from app.kernels.cpu.compiling import supported_sets
from app.kernels.cpu.library import load_library
from app.kernels.cpu.native_ops import NativeOps
from app.kernels.cpu.packers import PanelPacker, RoundedPacker
from app.models.weights import PlainPacker
from tests.checkpoints import tiny
from tests.kernels.cpu.compilers import use_compiler

needs_kernels = pytest.mark.skipif(load_library() is None, reason="no native kernels on this machine")
PROMPTS = ["the quick brown fox", "blocks, slots", "über 猫"]


def model(**given: object) -> tuple[Config, ModelFiles]:
    """The settings and the files of a tiny model."""
    config = make_config({"model": str(tiny("Qwen3")), "num_kv_blocks": 64, **given})
    return config, inspect(config.model)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.fixture
def no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without kernels."""
    monkeypatch.setattr(selection, "load_library", lambda: None)


@needs_kernels
@pytest.mark.parametrize("quantization", [None, "int8", "int4"])
def test_kernels_are_used_if_available(quantization: str | None):
    backend = select_backend(*model(quantization=quantization))
    assert isinstance(backend, NativeBackend)
    assert isinstance(backend.ops, NativeOps) and isinstance(backend.packer, PanelPacker)


def test_enforce_eager_does_not_load_kernels(monkeypatch: pytest.MonkeyPatch):
    def load() -> None:
        raise AssertionError("the kernels were loaded")

    monkeypatch.setattr(selection, "load_library", load)
    assert isinstance(select_backend(*model(enforce_eager=True)), EagerBackend)


def test_a_mixture_of_experts_is_refused_on_a_gpu_in_one_line(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(selection, "resolve_device", lambda device: "cuda")
    config = make_config({"model": str(tiny("Qwen3Moe")), "device": "cuda"})
    with pytest.raises(CannotStart, match=rf"^No GPU can be used: {NO_EXPERTS}\.$"):
        select_backend(config, inspect(config.model))


def test_without_kernels_torch_is_used_and_quantization_saves_nothing(
    no_library: None, caplog: pytest.LogCaptureFixture
):
    backend = select_backend(*model())
    assert isinstance(backend, EagerBackend) and isinstance(backend.packer, PlainPacker)
    assert warnings(caplog) == []
    backend = select_backend(*model(quantization="int8"))
    assert isinstance(backend.packer, RoundedPacker)
    (warning,) = warnings(caplog)
    assert "--quantization saves neither memory nor time" in warning


def test_an_int8_cache_is_rejected_without_kernels(no_library: None):
    with pytest.raises(CannotStart, match="--kv-cache-dtype int8 needs the native kernels"):
        select_backend(*model(kv_cache_dtype="int8")).kv_layout()
    with pytest.raises(ConfigurationError, match="enforce_eager turns off"):
        LLM(str(tiny("Qwen3")), kv_cache_dtype="int8", enforce_eager=True)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_both_backends_store_keys_and_values_in_the_models_dtype(dtype: str):
    config, files = model(dtype=dtype)
    spec = files.spec
    native, eager = NativeBackend(config, spec, None), EagerBackend(config, spec)
    assert native.kv_layout() == eager.kv_layout()
    assert native.kv_layout().dtype == getattr(torch, dtype)


def test_an_int8_cache_has_a_scale_after_each_head():
    config, files = model(kv_cache_dtype="int8")
    spec = files.spec
    layout = NativeBackend(config, spec, None).kv_layout()
    assert (layout.dtype, layout.head_dim) == (torch.int8, spec.head_dim + 4)
    assert layout.bytes_per_token == 2 * spec.num_layers * spec.num_kv_heads * (spec.head_dim + 4)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("quantization", [None, "int8", "int4"])
def test_native_rows_are_followed_by_zeros_and_sums_are_float32(dtype: str, quantization: str | None):
    config, files = model(dtype=dtype, quantization=quantization, max_num_batched_tokens=24, max_num_seqs=5)
    spec = files.spec
    arena = NativeBackend(config, spec, None).make_arena()
    assert arena.residual_TD.dtype == arena.qkv_TX.dtype == arena.logits_RV.dtype == torch.float32
    narrow = torch.bfloat16 if dtype == "bfloat16" else torch.float32
    assert arena.hidden_TD.dtype == arena.activated_TF.dtype == arena.attended_TNH.dtype == narrow
    for name in ("hidden_TD", "residual_TD", "qkv_TX", "gate_up_TX", "activated_TF", "last_RD", "logits_RV"):
        rows = getattr(arena, name)
        assert rows.stride(0) >= rows.shape[1] + NativeBackend.ROW_GAP and rows.stride(1) == 1
    assert len(arena.logits_RV) == 8 and len(arena.hidden_TD) == 24


@pytest.mark.parametrize("kind", ["none", "failing"])
@pytest.mark.skipif(not supported_sets(), reason="this machine cannot run the kernels")
def test_without_a_compiler_the_engine_works_and_warns_once(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    use_compiler(kind, tmp_path, monkeypatch)
    monkeypatch.setattr(selection, "load_library", load_library.__wrapped__)
    llm = LLM(str(tiny("Qwen3")), num_kv_blocks=64)
    outputs = llm.generate(PROMPTS, SamplingParams(max_tokens=8, temperature=0, ignore_eos=True), use_tqdm=False)
    assert [len(output.outputs[0].token_ids) for output in outputs] == [8, 8, 8]
    (warning,) = (line for line in warnings(caplog) if not line.startswith("Compiling"))
    assert "the slower torch path is used" in warning


@needs_kernels
@pytest.mark.parametrize("architecture", ["Llama", "Mistral", "Qwen2", "Qwen3"])
def test_both_backends_give_the_same_outputs(architecture: str):
    """Greedy and float32: the logits differ only by rounding."""
    outputs = []
    for is_eager in (False, True):
        llm = LLM(str(tiny(architecture)), num_kv_blocks=64, enforce_eager=is_eager)
        params = SamplingParams(max_tokens=24, temperature=0, ignore_eos=True)
        outputs.append([each.outputs[0].token_ids for each in llm.generate(PROMPTS, params, use_tqdm=False)])
    assert outputs[0] == outputs[1]


@needs_kernels
@pytest.mark.parametrize("given", [{"quantization": "int8"}, {"quantization": "int4"}, {"kv_cache_dtype": "int8"}])
def test_a_quantized_engine_gives_the_same_output_in_any_batch(given: dict[str, object]):
    params = SamplingParams(max_tokens=20, temperature=0, ignore_eos=True)
    llm = LLM(
        str(tiny("Llama", torch_dtype="bfloat16")), num_kv_blocks=64, max_num_seqs=8, max_num_batched_tokens=16, **given
    )
    together = [each.outputs[0].token_ids for each in llm.generate(PROMPTS, params, use_tqdm=False)]
    alone = [llm.generate(prompt, params, use_tqdm=False)[0].outputs[0].token_ids for prompt in PROMPTS]
    assert together == alone
