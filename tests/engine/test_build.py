"""Building an engine from a configuration: limits, model, warnings, errors."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from app.checkpoint.inspection import inspect
from app.checkpoint.names import resolve
from app.checkpoint.sizes import weight_bytes
from app.config.settings import ModelConfig, make_config
from app.contract.errors import CannotStart, ConfigurationError, ModelRefused
from app.contract.requests import EngineRequest
from app.contract.sampling_defaults import SamplingDefaults
from app.contract.sampling_params import SamplingParams
from app.engine import build as module
from app.engine.build import build_engine
from app.engine.execute.cpu.backend import HostBackend
from app.runtime.start_timings import StartTimings
from tests.checkpoints import damaged_copy, tiny
from tests.engine.driving import build, generate, request
from tests.gguf_writer import tiny_gguf


def test_model_info_has_limits_defaults_and_eos_ids(tmp_path: Path):
    folder = damaged_copy(tiny("Qwen2"), tmp_path / "my-model", eos_token_id=5)
    (folder / "generation_config.json").write_text(json.dumps({"temperature": 0.6, "top_k": 9, "eos_token_id": [7, 5]}))
    model_info = build(folder, num_kv_blocks=20, block_size=8, max_model_len=100).model_info
    assert (model_info.name, model_info.max_model_len, model_info.kv_capacity_tokens, model_info.vocab_size) == (
        "my-model",
        100,
        160,
        307,
    )
    assert model_info.eos_token_ids == (1, 5, 7), "config, generation_config and the tokenizer's </s>"
    assert model_info.defaults == SamplingDefaults(temperature=0.6, top_k=9)
    assert len(model_info.revision) == 32 and model_info.created > 0
    assert build(folder, served_model_name="other").model_info.name == "other"


def test_sampling_defaults_are_those_of_the_models_files_and_name(tmp_path: Path):
    """A folder and a GGUF file of one model have the same; without a chat template it is not the recommended model."""
    folder = damaged_copy(tiny("Llama"), tmp_path / "SmolLM2-135M-Instruct")
    file = tiny_gguf(tmp_path / "SmolLM2-135M-Instruct.Q8_0.gguf", kind="Q8_0")
    publisher = "temperature 0.2, top-p 0.9 (recommended by its publisher)"
    openai = "temperature 1, top-p 1 (OpenAI's default)"
    llama_cpp = "temperature 0.8, top-p 0.95, top-k 40, min-p 0.05 (llama.cpp's default)"
    for model, wanted in (
        (folder, publisher),
        (file, publisher),
        (damaged_copy(tiny("Llama", template=False), tmp_path / "SmolLM2-360M"), openai),
        (tiny_gguf(tmp_path / "m.gguf"), llama_cpp),
        (tiny("Llama"), openai),
        (resolve("guide"), "temperature 0 (from the model's files)"),
    ):
        assert str(build(model, num_kv_blocks=20).model_info.defaults) == wanted, model


def test_model_info_has_the_format_of_the_files_and_the_quantization(tmp_path: Path):
    for model, settings, wanted in (
        (tiny("Llama"), {}, ("safetensors", None)),
        (tiny("Llama"), {"quantization": "int4"}, ("safetensors", "int4")),
        (tiny_gguf(tmp_path / "f.gguf", kind="F16"), {}, ("gguf", None)),
        (tiny_gguf(tmp_path / "q.gguf", kind="Q8_0"), {}, ("gguf", "Q8_0")),
        (tiny_gguf(tmp_path / "q.gguf", kind="Q8_0"), {"quantization": "int8"}, ("gguf", "int8")),
    ):
        model_info = build(model, num_kv_blocks=8, **settings).model_info
        assert (model_info.format, model_info.quantization) == wanted


def test_progress_is_reported_up_to_one():
    shares: list[float] = []
    config = make_config({"model": str(tiny("Llama")), "num_kv_blocks": 8})
    build_engine(config, progress=shares.append)
    assert shares == sorted(shares) and shares[-1] == 1.0


def test_an_aborted_load_ends_the_compilers(monkeypatch: pytest.MonkeyPatch):
    class LoadAborted(Exception):
        pass

    def compile_for_ever(report: Callable[[str], None], check: Callable[[], None]) -> None:
        while True:
            check()

    def abort_load(share: float) -> None:
        raise LoadAborted

    monkeypatch.setattr(module, "prepare_library", compile_for_ever)
    with pytest.raises(LoadAborted):
        build_engine(make_config({"model": str(tiny("Llama")), "num_kv_blocks": 8}), progress=abort_load)


def test_the_engine_says_what_its_memory_is_for():
    engine = build_engine(make_config({"model": str(tiny("Llama")), "num_kv_blocks": 64, "swap_space": 2**20}))
    memory, layout = engine.stats().memory, engine.runner._cache.layout
    assert memory.kv_cache == 64 * layout.bytes_per_block
    assert memory.kv_host == 2**20 // layout.bytes_per_block * layout.bytes_per_block
    assert memory.weights > 0 and memory.activations > 0 and memory.graphs == 0


def test_startup_timings_have_all_phases_of_the_build():
    timings = StartTimings()
    timings.begin()
    build_engine(make_config({"model": str(tiny("Llama")), "num_kv_blocks": 8}), timings=timings)
    names = [phase.name for phase in timings.phases()]
    assert names == [
        "prepare_kernels",
        "load_weights",
        "allocate_cache",
        "read_vocabulary",
    ]


def test_a_pool_smaller_than_the_context_starts_with_one_warning(caplog: pytest.LogCaptureFixture):
    engine = build(tiny("Llama"), num_kv_blocks=4)
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1 and "64 tokens" in warnings[0].getMessage() and "512" in warnings[0].getMessage()
    assert generate(engine, [request(engine, "x", range(10, 40))])["x"]


def test_an_eos_id_outside_the_vocabulary_is_rejected(tmp_path: Path):
    folder = damaged_copy(tiny("Llama"), tmp_path / "model", eos_token_id=307)
    with pytest.raises(ModelRefused, match=r"eos_token_id is 307; ids must be between 0 and 306"):
        build(folder)


def test_too_little_memory_is_an_error_without_a_traceback():
    with pytest.raises(CannotStart, match="GiB are free"):
        build(tiny("Llama"), num_kv_blocks=2**50)


def test_weights_that_do_not_fit_are_refused_with_the_quant_that_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    files, sizes = {}, {}
    for kind in ("Q8_0", "Q4_0"):
        files[kind] = tiny_gguf(tmp_path / f"m.{kind}.gguf", kind=kind, intermediate_size=4096)
        given = inspect(ModelConfig(model=str(files[kind])))
        sizes[kind] = weight_bytes(given.spec, None, given.stored_type)
    monkeypatch.setattr(HostBackend, "free_memory", lambda self: (sizes["Q8_0"] + sizes["Q4_0"]) // 2)
    with pytest.raises(CannotStart, match=r"take .* are free\. What fits: the same model as Q5_K_M \(about "):
        build(files["Q8_0"], dtype="bfloat16")
    with pytest.raises(CannotStart, match=r"are free\. Use a smaller model or a shorter dtype\."):
        build(tiny("Llama", intermediate_size=4096))
    monkeypatch.setattr(HostBackend, "free_memory", lambda self: sizes["Q4_0"] // 2)
    with pytest.raises(CannotStart, match="No smaller quant that can be served fits; use a smaller model"):
        build(files["Q8_0"], dtype="bfloat16")


def test_an_internal_error_is_not_reported_as_a_lack_of_memory(monkeypatch: pytest.MonkeyPatch):
    def explode(*given: object) -> None:
        raise RuntimeError("shapes differ")

    monkeypatch.setattr(module, "load_weights", explode)
    with pytest.raises(RuntimeError, match="shapes differ"):
        build(tiny("Llama"))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_dummy_weights_need_only_a_config_and_are_reproducible(tmp_path: Path, dtype: str):
    (tmp_path / "config.json").write_bytes((tiny("Qwen3") / "config.json").read_bytes())
    outputs = []
    for seed in (0, 0, 1):
        engine = build(tmp_path, load_format="dummy", dtype=dtype, seed=seed)
        outputs.append(generate(engine, [request(engine, "x", range(20, 40), temperature=1.0, seed=3)])["x"])
    assert outputs[0] == outputs[1] != outputs[2]


def test_the_context_can_be_filled_to_its_last_token():
    """Every position has a rotation, a block and a row: prompt and output fill the context."""
    engine = build(tiny("Llama"), max_model_len=48, num_kv_blocks=3)
    assert len(generate(engine, [request(engine, "x", range(10, 40), max_tokens=18)])["x"]) == 18
    params = SamplingParams(max_tokens=19, seed=0, temperature=0.0)
    (rejected,) = engine.add(EngineRequest("y", tuple(range(10, 40)), params, 0.0))
    assert rejected.error.code == "context_length_exceeded"


def test_the_maximum_number_of_sequences_can_run(caplog: pytest.LogCaptureFixture):
    """Rows, arena and logit rows are large enough for full steps."""
    engine = build(tiny("Llama"), max_num_seqs=24, max_num_batched_tokens=24)
    requests = [request(engine, str(i), range(10 + i, 11 + i), max_tokens=6) for i in range(40)]
    assert len(generate(engine, requests)) == 40
    assert caplog.records == [] or all(record.levelno < logging.ERROR for record in caplog.records)


def test_invalid_settings_are_rejected_before_loading():
    with pytest.raises(ConfigurationError, match="max_num_batched_tokens"):
        build(tiny("Llama"), max_num_seqs=64, max_num_batched_tokens=32)


def test_building_does_not_change_torchs_default_type():
    build(tiny("Llama", torch_dtype="bfloat16"))
    assert torch.get_default_dtype() == torch.float32
