"""A model is opened whatever its files are, and checked without torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from app.checkpoint.folder import Checkpoint
from app.checkpoint.gguf_files import GgufFiles
from app.checkpoint.inspection import inspect, open_files
from app.config.settings import ModelConfig
from app.contract.errors import ModelRefused
from tests.checkpoints import tiny
from tests.gguf_writer import tiny_gguf

ROOT = Path(__file__).resolve().parents[2]


def test_a_folder_and_a_file_are_opened(tmp_path: Path):
    file = tiny_gguf(tmp_path / "m.gguf", kind="Q8_0")
    opened, folder = open_files(file), open_files(tiny())
    assert isinstance(opened, GgufFiles) and isinstance(folder, Checkpoint)
    assert (opened.format, opened.is_quantized) == ("GGUF, Q8_0", True)
    assert (folder.format, folder.is_quantized) == ("safetensors", False)
    assert opened.created == int(file.stat().st_mtime)
    assert folder.text_source == tiny() and opened.text_source.file == file


def test_max_model_len_is_at_most_the_models_length(tmp_path: Path):
    for model in (tiny(), tiny_gguf(tmp_path / "m.gguf")):
        assert inspect(ModelConfig(model=str(model), max_model_len=512))[1].max_position == 512
        with pytest.raises(ModelRefused, match=r"max_model_len is 513; .* supports at most 512 tokens"):
            inspect(ModelConfig(model=str(model), max_model_len=513))


def test_a_gguf_file_is_inspected_without_torch(tmp_path: Path):
    program = (
        "import sys\nfrom app.config.settings import ModelConfig\nfrom app.checkpoint.inspection import inspect\n"
        "inspect(ModelConfig(model=sys.argv[1]))\n"
        "assert not {'torch', 'transformers', 'gguf', 'numpy'} & set(sys.modules)\n"
    )
    file = str(tiny_gguf(tmp_path / "m.gguf"))
    done = subprocess.run([sys.executable, "-c", program, file], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
