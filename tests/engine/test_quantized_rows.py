"""The plan counts the bytes of quantized activations that the engine allocates."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.checkpoint.inspection import inspect
from app.commands.budget import has_kernels, quantized_as
from app.config.settings import make_config
from app.engine import build
from app.engine.execute.activation_sizes import kernel_bytes
from app.engine.execute.cpu.backend import NativeBackend
from app.engine.execute.selection import select_backend
from app.kernels.cpu.library import load_library
from tests.checkpoints import tiny
from tests.quantized_models import MIXED, random_gguf

LIMITS = {"max_model_len": 64, "num_kv_blocks": 8, "max_num_seqs": 2, "max_num_batched_tokens": 77}


def allocated(settings: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> int:
    """The bytes beside the arena of an engine."""
    backends = []

    def select(*arguments: object) -> object:
        backends.append(select_backend(*arguments))
        return backends[-1]

    monkeypatch.setattr(build, "select_backend", select)
    build.build_engine(make_config(settings))
    (backend,) = backends
    assert isinstance(backend, NativeBackend)
    return backend.activation_memory


def planned(settings: dict[str, object]) -> int:
    config = make_config(settings)
    files = inspect(config.model)
    stored = quantized_as(config, files.spec, files.stored_type)
    return kernel_bytes(config, files.spec, *stored, has_kernels=has_kernels(config))


@pytest.mark.skipif(load_library() is None, reason="no native kernels on this machine")
@pytest.mark.parametrize("kind", ["Q8_0", "Q4_1", "Q5_1", "Q4_K", "mixed"])
def test_rows_of_files_are_counted(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = random_gguf(tmp_path / "m.gguf", *(("Q4_K", MIXED) if kind == "mixed" else (kind,)))
    settings = LIMITS | {"model": str(file)}
    assert planned(settings) == allocated(settings, monkeypatch) > 0
    assert planned(settings | {"dtype": "float32"}) == 0


@pytest.mark.skipif(load_library() is None, reason="no native kernels on this machine")
@pytest.mark.parametrize("quantization", ["int8", "int4", None])
@pytest.mark.parametrize("tied", [True, False])
def test_rows_of_quantized_models_are_counted(quantization: str | None, tied: bool, monkeypatch: pytest.MonkeyPatch):
    settings = LIMITS | {"model": str(tiny("Llama", tie_word_embeddings=tied)), "quantization": quantization}
    assert planned(settings) == allocated(settings, monkeypatch)
    assert (planned(settings) > 0) == (quantization is not None)


@pytest.mark.skipif(load_library() is None, reason="no native kernels on this machine")
@pytest.mark.parametrize("quantization", ["int8", None])
def test_rows_of_experts_are_counted(quantization: str | None, monkeypatch: pytest.MonkeyPatch):
    settings = LIMITS | {"model": str(tiny("Qwen2Moe", torch_dtype="bfloat16")), "quantization": quantization}
    assert planned(settings) == allocated(settings, monkeypatch) > 0
