"""A model is opened whatever its files are, and checked without torch."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

import pytest

from app.checkpoint.folder import Checkpoint
from app.checkpoint.gguf import gguf_files
from app.checkpoint.gguf.gguf_files import GgufFiles
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
    assert (opened.format, opened.quantization, opened.is_quantized) == ("GGUF, Q8_0", "Q8_0", True)
    assert (folder.format, folder.quantization, folder.is_quantized) == ("safetensors", None, False)
    assert opened.created == int(file.stat().st_mtime)
    assert folder.text_source == tiny() and opened.text_source.file == file


def test_max_model_len_is_at_most_the_models_length(tmp_path: Path):
    for model in (tiny(), tiny_gguf(tmp_path / "m.gguf")):
        assert inspect(ModelConfig(model=str(model), max_model_len=512))[1].max_position == 512
        with pytest.raises(ModelRefused, match=r"max_model_len is 513; .* supports at most 512 tokens"):
            inspect(ModelConfig(model=str(model), max_model_len=513))


def test_a_file_that_vanishes_before_it_is_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = tiny_gguf(tmp_path / "m.gguf")
    read = gguf_files.read_header

    def remove_and_read(*args: Any, **options: Any) -> Any:
        file.unlink(missing_ok=True)
        return read(*args, **options)

    monkeypatch.setattr(gguf_files, "read_header", remove_and_read)
    with pytest.raises(ModelRefused) as refusal:
        open_files(file)
    assert refusal.value.message == f"{file} is not a regular file."
    assert refusal.value.exit_code == 2


def test_a_folder_that_may_not_be_entered_is_named(monkeypatch: pytest.MonkeyPatch):
    def forbid(path: Path) -> NoReturn:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    folder = tiny()
    monkeypatch.setattr(Path, "exists", forbid)
    with pytest.raises(ModelRefused, match=f"Cannot read {folder}/.*: Permission denied"):
        open_files(folder)


def test_a_gguf_file_is_inspected_without_torch(tmp_path: Path):
    program = (
        "import sys\nfrom app.config.settings import ModelConfig\nfrom app.checkpoint.inspection import inspect\n"
        "inspect(ModelConfig(model=sys.argv[1]))\n"
        "assert not {'torch', 'transformers', 'gguf', 'numpy'} & set(sys.modules)\n"
    )
    file = str(tiny_gguf(tmp_path / "m.gguf"))
    done = subprocess.run([sys.executable, "-c", program, file], capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")
