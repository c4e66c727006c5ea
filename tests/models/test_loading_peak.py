"""Loading takes little more memory than the weights: pages of the files and unpacked matrices are freed at once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from app.checkpoint.checkpoint_folder import Checkpoint
from app.checkpoint.gguf.gguf_names import stored_name
from tests.checkpoint.reading import read_spec
from tests.checkpoints import config_json, tiny
from tests.gguf_writer import model_fields, text_fields, write_gguf

PEAK = 1.3  # times the checkpoint's weights
SHAPE = {
    "vocab_size": 16384,
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 6,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "torch_dtype": "bfloat16",
}
LARGE = {
    "vocab_size": 151936, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28,
    "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "tie_word_embeddings": True,
}  # fmt: skip

# Prints how much the resident memory grows while weights are loaded: the peak, and at the end.
LOAD = """
import sys
from pathlib import Path
import torch
from app.checkpoint.inspection import inspect
from app.config.settings import make_config
from app.kernels.cpu.library import load_library
from app.kernels.cpu.packers import PanelPacker
from app.models.loader import load_weights
from app.models.file_source import FileSource

def resident(name):
    return next(int(line.split()[1]) for line in Path("/proc/self/status").open() if line.startswith(name)) * 1024

files = inspect(make_config({"model": sys.argv[1]}).model)
spec = files.spec
torch.ones(1 << 20, dtype=torch.bfloat16).float().sum()  # starts the threads and allocates their stacks
before = resident("VmRSS")
Path("/proc/self/clear_refs").write_text("5")  # resets the peak
with FileSource(files) as source:
    packer = PanelPacker(sys.argv[2] or None, load_library())
    weights = load_weights(spec, source, packer=packer)
print(resident("VmHWM") - before, resident("VmRSS") - before)
"""


@pytest.fixture(scope="module", params=[True, pytest.param(False, marks=pytest.mark.long)], ids=["tied", "untied"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of about 200 MB in two files."""
    folder = tmp_path_factory.mktemp("large")
    (folder / "config.json").write_text(json.dumps(config_json(**SHAPE, tie_word_embeddings=request.param)))
    shapes = read_spec(Checkpoint.open(folder, with_weights=False)).tensor_shapes()
    numbers = torch.randn(1 << 20).bfloat16()  # fresh ones for every weight would take longer than the test
    tensors = {
        name: numbers.repeat(-(-torch.Size(s).numel() // len(numbers)))[: torch.Size(s).numel()].view(s).clone()
        for name, s in shapes.items()
    }
    names = sorted(tensors)
    for number, held in enumerate((names[::2], names[1::2])):
        save_file({name: tensors[name] for name in held}, folder / f"model-{number}.safetensors")
    return folder


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    "quantization",
    [
        pytest.param("", id="bfloat16"),
        pytest.param("int8", id="int8", marks=pytest.mark.long),
        pytest.param("int4", id="int4", marks=pytest.mark.long),
    ],
)
def test_loading_peaks_near_the_size_of_the_weights(folder: Path, quantization: str):
    num_bytes = 2 * read_spec(Checkpoint.open(folder)).num_parameters()
    assert peak(folder, num_bytes, quantization) < PEAK * num_bytes


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_loading_a_gguf_file_peaks_near_its_size(tmp_path: Path):
    """The shape of Qwen3-0.6B, Q8_0 with random bits."""
    file = write_q8_0(tmp_path)
    num_bytes = file.stat().st_size
    assert num_bytes >= 500_000_000
    assert peak(file, num_bytes) < PEAK * num_bytes


def peak(model: Path, num_bytes: int, quantization: str = "") -> int:
    """Load a model in a process of its own; the bytes by which its memory grew at most."""
    command = [sys.executable, "-c", LOAD, str(model), quantization]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    peak, kept = map(int, done.stdout.split())
    print(f"{num_bytes / 1e6:.0f} MB of weights: peak {peak / num_bytes:.2f}, kept {kept / num_bytes:.2f} of them")
    return peak


def write_q8_0(folder: Path) -> Path:
    """Write a model whose groups have random weights and one scale."""
    (folder / "config.json").write_text(json.dumps(config_json("Qwen3", **LARGE)))
    spec = read_spec(Checkpoint.open(folder, with_weights=False))
    block = np.random.default_rng(0).integers(0, 256, (4096, 34), np.uint8)
    block[:, :2] = np.array([0.001], np.float16).view(np.uint8)
    tensors = {
        stored_name(name): ("Q8_0", np.resize(block, (shape[0], shape[1] // 32 * 34)))
        if len(shape) == 2
        else ("F32", np.ones(shape, np.float32))
        for name, shape in spec.tensor_shapes().items()
    }
    metadata = model_fields(folder, "Qwen3") | text_fields(tiny("Qwen3"))
    return write_gguf(folder / "large.gguf", metadata, tensors)
