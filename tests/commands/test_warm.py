"""`quire warm` compiles without a GPU, says what it did, and rejects in sentences."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from app import cli
from app.commands import warm
from app.engine.execute.gpu import precompilation
from app.kernels.cpu import compiling
from tests.checkpoints import tiny


def run(capsys, *arguments):
    code = cli.main(["warm", *map(str, arguments)])
    return code, capsys.readouterr()


@pytest.fixture(name="jobs")
def _jobs(monkeypatch, tmp_path):
    """The compilations that are started; each has 7 kernels."""
    started = []

    def start(compilation):
        started.append(compilation._job)
        compilation.num_kernels = 7

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(precompilation.Precompilation, "start", start)
    monkeypatch.setattr(precompilation.Precompilation, "wait", lambda self: [])
    monkeypatch.setattr(compiling, "supported_sets", list)
    return started


def test_kernels_are_compiled_for_all_gpus_of_a_capability_or_one_kind(jobs, capsys, tmp_path):
    code, said = run(capsys, tiny("Llama"), "--capability", "9.0", "--max-model-len", 64)
    assert (code, said.err) == (0, "")
    assert "GPU kernels for compute capability 9.0: 7, by " in said.out and str(tmp_path) in said.out
    assert "CPU kernels" in said.out
    assert run(capsys, tiny("Llama"), "--capability", "12.1", "--processors", 48)[0] == 0
    assert [(job["capability"], job["num_processors"]) for job in jobs] == [((9, 0), [114, 132]), ((12, 1), [48])]
    assert jobs[0]["settings"]["max_model_len"] == 64
    assert jobs[0]["settings"]["max_num_seqs"] == 256, "the defaults are those of a GPU"


def test_without_a_gpu_and_a_capability_only_the_cpu_is_warmed(jobs, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    code, said = run(capsys, tiny("Llama"))
    assert code == 0 and "GPU kernels: left out, torch finds no GPU; --capability 9.0" in said.out and not jobs


def test_the_gpu_of_this_machine_is_the_default(jobs, capsys, monkeypatch):
    found = SimpleNamespace(major=8, minor=9, multi_processor_count=142)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: found)
    assert run(capsys, tiny("Llama"))[0] == 0
    assert [(job["capability"], job["num_processors"]) for job in jobs] == [((8, 9), [142])]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--capability", "7.5"], "the kernels need 8.0"),
        (["--capability", "hopper"], "must be a compute capability such as 9.0"),
        (["--capability", "12.1"], "needs --processors"),
        (["--capability", "9.0", "--processors", "0"], "must be at least 1"),
        (["--capability", "8.0", "--kv-cache-dtype", "fp8"], "fp8 needs a GPU of compute capability 8.9"),
        (["--quantization", "int8"], "unknown option '--quantization'"),
    ],
)
def test_what_cannot_be_is_rejected_in_a_sentence(arguments, words, jobs, capsys):
    code, said = run(capsys, tiny("Llama"), *arguments)
    assert code == 2 and words in said.err and said.err.count("\n") == 1 and not jobs


def test_kernels_that_fail_are_a_failure(jobs, capsys, monkeypatch):
    monkeypatch.setattr(precompilation.Precompilation, "wait", lambda self: ["matmul: out of registers"])
    code, said = run(capsys, tiny("Llama"), "--capability", "9.0")
    assert code == cli.EXIT_CANNOT_START and "1 of 7 GPU kernels failed: matmul: out of registers" in said.err


def test_without_triton_it_says_how_to_get_it(jobs, capsys, monkeypatch):
    monkeypatch.setattr(warm, "find_spec", lambda name: None)
    code, said = run(capsys, tiny("Llama"), "--capability", "9.0")
    assert code == cli.EXIT_CANNOT_START and "[gpu]" in said.err
