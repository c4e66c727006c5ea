"""A model is opened whatever its files are, and checked without torch."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

import pytest

from app.checkpoint.gguf import gguf_files
from app.checkpoint.inspection import inspect, inspect_at
from app.config.settings import ModelConfig
from app.contract.errors import ModelRefused
from tests.checkpoints import tiny
from tests.gguf_writer import tiny_gguf

ROOT = Path(__file__).resolve().parents[2]


def test_folders_and_files_are_inspected(tmp_path: Path):
    file, plain = tiny_gguf(tmp_path / "m.gguf", kind="Q8_0"), tiny_gguf(tmp_path / "f16.gguf", kind="F16")
    quantized, numbers, folder = (inspect(ModelConfig(model=str(path))) for path in (file, plain, tiny()))
    assert [each.format for each in (quantized, numbers, folder)] == ["gguf", "gguf", "safetensors"]
    assert [each.summary for each in (quantized, numbers, folder)] == ["GGUF, Q8_0", "GGUF, F16", "safetensors"]
    assert [each.quantization for each in (quantized, numbers, folder)] == ["Q8_0", None, None]
    assert [each.path for each in (quantized, numbers, folder)] == [file, plain, tiny()]
    assert quantized.created == int(file.stat().st_mtime)
    assert folder.tensors is not None and folder.tensors.keys() >= folder.spec.tensor_shapes().keys()
    for name, shape in quantized.spec.tensor_shapes().items():
        kind = quantized.stored_type(name)
        assert (kind is not None and kind.name == "Q8_0") == (len(shape) > 1)
        assert numbers.stored_type(name) is folder.stored_type(name) is None


def test_max_model_len_is_at_most_the_models_length(tmp_path: Path):
    for model in (tiny(), tiny_gguf(tmp_path / "m.gguf")):
        assert inspect(ModelConfig(model=str(model), max_model_len=512)).spec.max_position == 512
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
        inspect(ModelConfig(model=str(file)))
    assert refusal.value.message == f"{file} is not a regular file."
    assert refusal.value.exit_code == 2


def test_a_folder_that_may_not_be_entered_is_named(monkeypatch: pytest.MonkeyPatch):
    def forbid(path: Path) -> NoReturn:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    folder = tiny()
    monkeypatch.setattr(Path, "exists", forbid)
    with pytest.raises(ModelRefused, match=f"Cannot read {folder}/.*: Permission denied"):
        inspect_at(folder, ModelConfig())


def test_a_gguf_file_is_inspected_without_torch(tmp_path: Path):
    program = (
        "import sys\nfrom app.config.settings import ModelConfig\nfrom app.checkpoint.inspection import inspect\n"
        "inspect(ModelConfig(model=sys.argv[1]))\n"
        "assert not {'torch', 'transformers', 'gguf', 'numpy'} & set(sys.modules)\n"
    )
    file = str(tiny_gguf(tmp_path / "m.gguf"))
    done = subprocess.run([sys.executable, "-c", program, file], capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")
