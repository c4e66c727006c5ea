"""Tensors are read as safetensors reads them, and no page of the file stays in memory."""

from __future__ import annotations

import gc
import os
import re
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from app.checkpoint.checkpoint_folder import Checkpoint
from app.checkpoint.file_state import FileState
from app.checkpoint.stored_tensor import StoredTensor
from app.contract.errors import ModelRefused
from app.models.mapped_file import MappedFile, map_files

MIB = 1 << 20
SHAPE = (1024, 2560)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file of two matrices of 10 MiB and a short vector."""
    matrices = {name: torch.randn(SHAPE) for name in ("a", "b")}
    save_file({**matrices, "short": torch.arange(3, dtype=torch.float16)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("{}")
    return tmp_path / "model.safetensors"


def entries(file: Path) -> dict[str, StoredTensor]:
    """Where the tensors of `file` are."""
    return Checkpoint.open(file.parent).tensors or {}


def mapping(file: Path) -> MappedFile:
    """The file as it is now, mapped."""
    with file.open("rb") as stream:
        return MappedFile(file, FileState.of(stream))


def resident(file: Path) -> int:
    """The bytes of `file` that this process has mapped and touched."""
    maps = Path("/proc/self/smaps").read_text()
    own = [part for part in re.split(r"\n(?=[0-9a-f]+-[0-9a-f]+ )", maps) if str(file) in part.splitlines()[0]]
    return sum(int(size) for part in own for size in re.findall(r"^Rss: +(\d+) kB", part, re.M)) * 1024


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["a", "b", "short"])
def test_any_tensor_is_read_in_any_dtype(file: Path, name: str, dtype: torch.dtype):
    wanted = load_file(file)[name].to(dtype)
    out = torch.empty(wanted.shape, dtype=dtype)
    with mapping(file) as mapped:
        mapped.read(entries(file)[name], out)
    assert torch.equal(out, wanted)


def test_no_page_stays_in_memory_after_a_read(file: Path):
    held = []
    with mapping(file) as mapped:
        for name in ("a", "b", *["short"] * 20):
            mapped.read(entries(file)[name], torch.empty(entries(file)[name].shape))
            held.append(resident(file))
    assert max(held) <= 0.2 * MIB
    assert resident(file) == 0


def test_closing_works_while_tensors_are_kept(file: Path):
    out = torch.empty(3)
    with mapping(file) as mapped:
        mapped.read(entries(file)["short"], out)
    assert out.tolist() == [0.0, 1.0, 2.0]
    with pytest.raises(ValueError, match="closed file"):
        mapped.read(entries(file)["short"], out)


def test_a_file_that_is_truncated_while_it_is_loaded_is_rejected(file: Path):
    """Reading a mapped page behind the end of a file would end the process by a signal."""
    found = entries(file)
    with mapping(file) as mapped:
        os.truncate(file, 100_000)
        with pytest.raises(ModelRefused, match=r"model\.safetensors became shorter while it was loaded"):
            mapped.read(found["short"], torch.empty(3))


def test_a_file_that_is_overwritten_while_it_is_loaded_is_rejected(file: Path):
    """Else a part of the weights would be of another model."""
    found = entries(file)
    with mapping(file) as mapped:
        state = file.stat()
        os.utime(file, ns=(state.st_atime_ns, state.st_mtime_ns + 1))
        with pytest.raises(ModelRefused, match=r"model\.safetensors was changed while it was loaded"):
            mapped.read(found["short"], torch.empty(3))


def test_files_that_are_mapped_are_closed_if_one_was_changed(file: Path, tmp_path: Path):
    other = tmp_path / "other"
    other.write_bytes(b"1234")
    with file.open("rb") as one, other.open("rb") as two:
        states = {file: FileState.of(one), other: FileState.of(two)._replace(num_bytes=3)}
    gc.collect()  # what other tests left open
    before = len(os.listdir("/proc/self/fd"))
    with ExitStack() as stack:
        with pytest.raises(ModelRefused, match="other was changed while it was loaded"):
            map_files((file, other), states, stack)
        assert len(os.listdir("/proc/self/fd")) == before
