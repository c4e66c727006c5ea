"""Kernels are compiled beside the start, into the places of Triton's cache where launches look for them."""

from __future__ import annotations

import gc
import json
import shutil
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from app.checkpoint.inspection import inspect, inspect_headers
from app.config.settings import make_config
from app.contract.errors import CannotStart
from app.engine.execute.gpu import compile_worker, precompilation
from app.engine.execute.gpu.precompilation import Precompilation, calibrates
from tests.checkpoints import tiny
from tests.engine.execute.gpu.programs import run_program
from tests.models.test_kv_scales import with_tensors

CAPABILITY, PROCESSORS = (9, 0), 132
SMALL = {"max_num_seqs": 4, "max_num_batched_tokens": 16, "max_model_len": 128}


@pytest.fixture(name="cache")
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def precompilation_of(folder: Path, *, processors: int = PROCESSORS, **settings: object) -> Precompilation:
    config = make_config({"model": str(folder), "device": "cuda", **SMALL, **settings})
    return Precompilation(config, inspect(config.model), CAPABILITY, [processors])


def files(cache: Path) -> dict[str, int]:
    """The files of the cache with their times."""
    return {str(path): path.stat().st_mtime_ns for path in cache.rglob("*") if path.is_file()}


@pytest.mark.long
def test_a_start_finds_every_kernel_in_the_cache_and_the_next_one_starts_no_process(cache):
    if shutil.which("gcc") is None:
        pytest.skip("no C compiler on this machine")
    folder = tiny("Llama")
    compilation = precompilation_of(folder)
    compilation.start()
    assert compilation.wait() == []
    assert len(list(cache.rglob("*.cubin"))) >= compilation.num_kernels - 1 > 10  # some differ in nothing that counts
    before = files(cache)
    counts = run_program("first_launches", folder, json.dumps(SMALL), "9.0", PROCESSORS, cache=cache)
    assert counts["launches"] > counts["found"] > 10 and counts["compiled"] == []
    again = precompilation_of(folder)
    assert again.is_done
    again.start()
    assert again.wait() == [] and again.num_kernels == 0 and files(cache) == before


def test_a_note_is_for_one_model_its_settings_and_one_kind_of_gpu(cache):
    folder = tiny("Llama")
    cache.mkdir()
    done = precompilation_of(folder)
    for note in done._notes:
        note.touch()
    assert done.is_done
    assert precompilation_of(folder, gpu_memory_utilization=0.5, num_kv_blocks=7).is_done
    assert not precompilation_of(folder, max_model_len=64).is_done
    assert not precompilation_of(folder, deterministic=True).is_done
    assert not precompilation_of(folder, processors=114).is_done
    assert not precompilation_of(folder, dependent_launches=False).is_done
    assert not precompilation_of(tiny("Qwen3")).is_done


def test_workers_get_the_path_of_the_model_at_its_revision(monkeypatch):
    folder, asked = tiny("Llama"), []
    monkeypatch.setattr(precompilation, "resolve", lambda *name: asked.append(name) or folder)
    config = make_config({"model": "owner/name", "revision": "v1", "device": "cuda", **SMALL})
    found = inspect(make_config({"model": str(folder)}).model)
    job = Precompilation(config, found, CAPABILITY, [PROCESSORS])._job
    assert asked == [("owner/name", "v1")] and job["settings"]["model"] == str(folder)


def test_calibrating_is_compiled_for_unless_the_checkpoint_has_scales(tmp_path):
    scales = {f"{layer}_{kind}_scale": torch.tensor(0.5) for layer in range(2) for kind in "kv"}
    scaled, plain = with_tensors(tmp_path, **scales).path, tiny("Llama")
    (only_config := tmp_path / "config only").mkdir()
    shutil.copy(plain / "config.json", only_config)

    def found(folder: Path, kv_cache_dtype: str = "fp8", load_format: str = "auto") -> bool:
        given = {"model": str(folder), "kv_cache_dtype": kv_cache_dtype, "load_format": load_format}
        config = make_config({"device": "cuda", **given})
        return calibrates(config, inspect_headers(config.model, folder))

    assert found(plain) and found(only_config) and found(scaled, load_format="dummy")  # random weights: no scales
    assert not found(scaled) and not found(plain, "auto")


def test_a_worker_compiles_what_calibrating_launches_only_if_there_will_be_any(monkeypatch):
    calls: list[str] = []
    for name in ("dry_run", "dry_calibration"):
        monkeypatch.setattr(compile_worker, name, lambda *given, name=name: calls.append(name))
    monkeypatch.setattr(compile_worker, "Specializations", lambda capability: nullcontext())
    job = precompilation_of(tiny("Llama"))._job
    compile_worker.find(job)
    compile_worker.find(job | {"calibrates": True})
    assert calls == ["dry_run", "dry_run", "dry_calibration"]


@pytest.mark.long
def test_what_is_compiled_is_for_dependent_launches_if_the_setting_and_the_gpu_allow_it():
    wanted = [((9, 0), True, True), ((9, 0), False, False), ((8, 9), True, False)]
    found = run_program("found_options", tiny("Llama"), json.dumps(SMALL), json.dumps([case[:2] for case in wanted]))
    assert found == [[["IS_DEPENDENT", is_dependent], ["launch_pdl", is_dependent]] for *_, is_dependent in wanted]


def test_a_worker_that_fails_is_reported_and_leaves_no_note(cache, monkeypatch):
    compilation = precompilation_of(tiny("Llama"))
    compilation._job["settings"]["model"] = "/nowhere/at/all"
    compilation.num_workers = 1
    compilation.start()
    (problem,) = compilation.wait()
    assert "ended early" in problem and "/nowhere/at/all" in problem
    assert not compilation.is_done and compilation.wait() == []


def test_the_processes_of_a_start_that_fails_are_ended(cache):
    compilation = precompilation_of(tiny("Llama"))
    compilation.num_workers = 1
    compilation.start()
    (worker,), folder = compilation._workers, compilation._folder
    del compilation
    gc.collect()
    assert worker.returncode is not None and not folder.exists()


def test_without_a_c_compiler_nothing_starts_unless_all_is_compiled(cache, monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CC", raising=False)
    compilation = precompilation_of(tiny("Llama"))
    with pytest.raises(CannotStart, match="C compiler"):
        compilation.start()
    cache.mkdir()
    for note in compilation._notes:
        note.touch()
    compilation.start()
    assert compilation.wait() == []


def test_a_cache_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "file" / "cache"))
    with pytest.raises(CannotStart, match="TRITON_CACHE_DIR"):
        precompilation_of(tiny("Llama")).start()


def test_what_failed_is_in_the_log(monkeypatch, caplog):
    compilation = precompilation_of(tiny("Llama"))
    monkeypatch.setattr(precompilation.Precompilation, "wait", lambda self: ["matmul: no memory"])
    compilation.finish()
    assert "matmul: no memory" in caplog.text


def test_without_a_temporary_folder_the_start_is_refused_in_words(cache, monkeypatch):
    monkeypatch.setattr(precompilation, "check_c_compiler", lambda: None)
    monkeypatch.setattr(precompilation.tempfile, "tempdir", None)
    monkeypatch.setattr(precompilation.tempfile, "_candidate_tempdir_list", list)
    with pytest.raises(CannotStart, match="set TMPDIR to a folder of yours"):
        precompilation_of(tiny("Llama")).start()
