"""Preparing peers: weights in llama.cpp's format, and the setup script."""

import importlib
import os
import subprocess

import pytest
import torch

from app.checkpoint.inspection import inspect
from app.config.settings import make_config
from app.models.file_source import FileSource
from benchmarks.cpu.gguf.cells import QWEN3_CONFIG
from benchmarks.cpu.sides import GGUF_PACKAGE, ROOT
from benchmarks.cpu.weights import write_checkpoint, write_model

SETUP = ROOT / "benchmarks" / "peers" / "setup.sh"
INSTALLED = ("vllm/.done", "tcmalloc/usr", "llama.cpp-avx2/llama-perplexity", "gguf/gguf")


@pytest.fixture
def write_gguf(monkeypatch):
    """The module that needs the gguf package; skips if `make peers` has not been run."""
    if not GGUF_PACKAGE.exists():
        pytest.skip("needs the gguf package (make peers)")
    monkeypatch.syspath_prepend(str(GGUF_PACKAGE))
    return importlib.import_module("benchmarks.peers.write_gguf")


@pytest.mark.parametrize(("kind", "error"), [("bf16", 0.0), ("q8_0", 0.01), ("q4_0", 0.13)])
def test_llama_cpp_gets_the_same_weights(write_gguf, tmp_path, kind, error):
    import gguf

    folder, file = write_checkpoint("tiny", tmp_path / "tiny"), tmp_path / "tiny.gguf"
    write_gguf.write(folder, kind, file)
    reader = gguf.GGUFReader(file)
    stored = {tensor.name: tensor for tensor in reader.tensors}
    assert len(stored) == 1 + 9 * 8 + 1
    name = "model.layers.3.mlp.down_proj.weight"
    with FileSource(inspect(make_config({"model": str(folder)}).model)) as source:
        expected = torch.empty(256, 1024)
        source.read(name, expected)
    tensor = stored["blk.3.ffn_down.weight"]
    found = torch.from_numpy(gguf.quants.dequantize(tensor.data, tensor.tensor_type)).view(256, 1024)
    assert (found - expected).abs().max() <= error * expected.abs().max()


def test_query_and_key_rows_are_interleaved_and_values_are_not(write_gguf):
    config = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4}
    rows = torch.arange(8.0).view(8, 1)
    assert write_gguf.with_neighbours("a.q_proj.weight", rows, config).flatten().tolist() == [0, 2, 1, 3, 4, 6, 5, 7]
    assert write_gguf.with_neighbours("a.k_proj.weight", rows[:4], config).flatten().tolist() == [0, 2, 1, 3]
    assert write_gguf.with_neighbours("a.v_proj.weight", rows, config) is rows
    assert write_gguf.with_neighbours("a.q_proj.weight", rows, config | {"model_type": "qwen3"}) is rows


def test_a_qwen3_keeps_all_its_tensors(write_gguf, tmp_path):
    import gguf

    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2,
             "num_key_value_heads": 1, "head_dim": 32, "vocab_size": 512}  # fmt: skip
    folder, file = write_model(QWEN3_CONFIG | sizes, tmp_path / "q"), tmp_path / "q.gguf"
    write_gguf.write(folder, "bf16", file)
    names = {tensor.name for tensor in gguf.GGUFReader(file).tensors}
    assert len(names) == 2 + 2 * 11
    assert {"blk.1.attn_q_norm.weight", "blk.1.attn_k_norm.weight"} <= names
    spec = inspect(make_config({"model": str(file)}).model).spec
    assert spec.architecture == "Qwen3ForCausalLM" and spec.tie_word_embeddings


def test_a_second_setup_keeps_installed_peers(tmp_path):
    for name in INSTALLED:
        (tmp_path / ".peers" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / ".peers" / name).touch()
    done = subprocess.run(["sh", str(SETUP)], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Installing" not in done.stdout
    assert "vLLM" in (tmp_path / ".peers" / "versions").read_text()


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [((), ["vLLM", "tcmalloc", "llama.cpp", "llama.cpp"]), (("gguf",), ["llama.cpp"]), (("tcmalloc",), ["tcmalloc"])],
)
def test_peers_that_cannot_be_installed_are_skipped_with_one_line_each(tmp_path, chosen, expected):
    """With no tools on the path; of all peers, or of those that are chosen."""
    for name in ("mkdir", "cat", "nproc", "rm", "sh", "touch"):
        (tmp_path / name).symlink_to(f"/bin/{name}" if os.path.exists(f"/bin/{name}") else f"/usr/bin/{name}")
    environ = {"PATH": str(tmp_path), "PYTHON": "no-such-python"}
    done = subprocess.run(["/bin/sh", str(SETUP), *chosen], cwd=tmp_path, env=environ, capture_output=True, text=True)
    assert done.returncode == 0
    skipped = [line.split(":")[1].strip() for line in done.stderr.splitlines() if line.startswith("skipped: ")]
    assert skipped == expected
