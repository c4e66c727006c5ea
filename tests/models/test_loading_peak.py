"""Loading takes little more memory than the weights: pages of the files and unpacked matrices are freed at once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from app.checkpoint.folder import Checkpoint
from app.checkpoint.hf_config import read_spec
from tests.checkpoints import config_json

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

# Prints how much the resident memory grows while weights are loaded: the peak, and at the end.
LOAD = """
import sys
from pathlib import Path
import torch
from app.checkpoint.folder import Checkpoint
from app.kernels.cpu.packers import PanelPacker
from app.checkpoint.hf_config import read_spec
from app.models.loader import SafetensorsSource, load_weights
from app.models.parallel import ParallelContext

def resident(name):
    return next(int(line.split()[1]) for line in Path("/proc/self/status").open() if line.startswith(name)) * 1024

checkpoint = Checkpoint.open(Path(sys.argv[1]))
spec = read_spec(checkpoint)
torch.ones(1 << 20, dtype=torch.bfloat16).float().sum()  # starts the threads and allocates their stacks
before = resident("VmRSS")
Path("/proc/self/clear_refs").write_text("5")  # resets the peak
with SafetensorsSource(checkpoint) as source:
    weights = load_weights(spec, source, ParallelContext(), packer=PanelPacker(sys.argv[2] or None))
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
        pytest.param("int8", id="int8"),
        pytest.param("int4", id="int4", marks=pytest.mark.long),
    ],
)
def test_loading_peaks_near_the_size_of_the_weights(folder: Path, quantization: str):
    num_bytes = 2 * read_spec(Checkpoint.open(folder)).num_parameters()
    command = [sys.executable, "-c", LOAD, str(folder), quantization]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
    peak, kept = map(int, done.stdout.split())
    print(f"{num_bytes / 1e6:.0f} MB of weights: peak {peak / num_bytes:.2f}, kept {kept / num_bytes:.2f} of them")
    assert peak < PEAK * num_bytes
