"""GGUF files as one model: parts, contents that are no model, the revision."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.checkpoint.gguf.gguf_files import GgufFiles
from app.checkpoint.names import resolve
from app.contract.errors import ModelRefused
from tests.gguf_writer import tiny_gguf, write_gguf

ROW = np.ones((2, 32), np.float32)


def write_part(folder: Path, number: int, count: int, *names: str, **fields: Any) -> Path:
    """Write part `number` (from 1) with a tensor for each name; `fields` replace its keys, with a dot for __."""
    values = {"general.architecture": "llama", "split.no": number - 1, "split.count": count}
    values |= {name.replace("__", "."): value for name, value in fields.items()}
    return write_gguf(folder / f"m-{number:05}-of-{count:05}.gguf", values, dict.fromkeys(names, ("F32", ROW)))


def test_any_part_may_be_given(tmp_path: Path):
    files = [write_part(tmp_path, number, 3, name, a__number=number) for number, name in ((1, "a"), (2, "b"), (3, "c"))]
    for file in files:
        opened = GgufFiles.open(file)
        assert {name: tensor.file for name, tensor in opened.tensors.items()} == dict(zip("abc", files, strict=True))
        assert opened.metadata.file == files[0] and opened.metadata.fields["a.number"] == 1
    assert len({GgufFiles.open(file).revision for file in files}) == 1


@pytest.mark.parametrize("name", ["m-00001-of-00013.gguf", "m-00007-of-00013.gguf", "sha256-0123", "m.bin"])
@pytest.mark.parametrize("fields", [{}, {"split.count": 1}, {"split.count": 0}], ids=str)
def test_a_whole_file_is_one_whatever_its_name_is(tmp_path: Path, name: str, fields: dict[str, Any]):
    file = write_gguf(tmp_path / name, {"general.architecture": "llama", **fields}, {"a": ("F32", ROW)})
    assert list(GgufFiles.open(resolve(str(file))).tensors) == ["a"]


def test_a_model_is_called_as_its_metadata_and_its_file_say(tmp_path: Path):
    fields = {"general.architecture": "llama", "general.name": "Smollm2 135M", "general.basename": 7}
    file = write_gguf(tmp_path / "m.gguf", fields, {"a": ("F32", ROW)})
    assert GgufFiles.open(file).names == ("Smollm2 135M", "m.gguf")
    parts = {"general.basename": "Qwen2.5", "general.size_label": "7B", "general.finetune": "Instruct"}
    file = write_gguf(tmp_path / "n.gguf", {"general.architecture": "qwen2", **parts}, {"a": ("F32", ROW)})
    assert GgufFiles.open(file).names == ("Qwen2.5", "Qwen2.5 7B Instruct", "n.gguf")


def test_a_missing_part_is_named_whichever_is_given(tmp_path: Path):
    parts = [write_part(tmp_path, number, 3, str(number)) for number in (1, 2, 3)]
    parts[1].unlink()
    for part in (parts[0], parts[2]):
        with pytest.raises(ModelRefused, match=r"00002-of-00003\.gguf is missing, a part of"):
            GgufFiles.open(resolve(str(part)))


def test_a_pointer_of_git_lfs_is_named(tmp_path: Path):
    file = tmp_path / "m.gguf"
    file.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    with pytest.raises(ModelRefused, match="git lfs pull"):
        GgufFiles.open(file)


def test_a_split_of_one_part_needs_no_name(tmp_path: Path):
    file = write_gguf(tmp_path / "m.gguf", {"split.no": 0, "split.count": 1}, {"a": ("F32", ROW)})
    assert list(GgufFiles.open(file).tensors) == ["a"]


@pytest.mark.parametrize(
    ("second", "words"),
    [
        ({"split__no": 0}, "00002-of-00002.gguf is not part 2 of 2"),
        ({"split__count": 3}, "00002-of-00002.gguf is not part 2 of 2"),
        ({"split__count": 0}, "00002-of-00002.gguf is not part 2 of 2"),
    ],
)
def test_a_part_that_is_another_than_its_name_says_is_rejected(second: dict[str, int], words: str, tmp_path: Path):
    first = write_part(tmp_path, 1, 2, "a")
    write_part(tmp_path, 2, 2, "b", **second)
    with pytest.raises(ModelRefused, match=words):
        GgufFiles.open(first)


def test_a_missing_part_is_named(tmp_path: Path):
    first = write_part(tmp_path, 1, 9999, "a")
    with pytest.raises(ModelRefused, match=r"m-00002-of-09999\.gguf is missing.*all 9999 parts"):
        GgufFiles.open(first)


@pytest.mark.parametrize("name", ["m.gguf", "m-00001-of-00003.gguf", "m-1-of-2.gguf", "m-00003-of-00002.gguf"])
def test_a_part_with_another_name_is_rejected(name: str, tmp_path: Path):
    write_part(tmp_path, 1, 2, "a").rename(tmp_path / name)
    with pytest.raises(ModelRefused, match=r"one of 2 parts, but its name does not end in -00001-of-00002\.gguf"):
        GgufFiles.open(tmp_path / name)


@pytest.mark.parametrize("count", [2**20, 10_000, -1, "2", 2.0, True])
def test_an_impossible_number_of_parts_is_rejected(count: object, tmp_path: Path):
    file = write_part(tmp_path, 1, 2, "a", split__count=count)
    with pytest.raises(ModelRefused, match=r"split\.count is"):
        GgufFiles.open(file)


def test_a_tensor_in_two_parts_is_rejected(tmp_path: Path):
    write_part(tmp_path, 1, 2, "a")
    with pytest.raises(ModelRefused, match="contains a a second time"):
        GgufFiles.open(write_part(tmp_path, 2, 2, "a"))


def test_parts_with_fewer_tensors_than_announced_are_rejected(tmp_path: Path):
    file = write_part(tmp_path, 1, 2, "a", split__tensors__count=7)
    write_part(tmp_path, 2, 2, "b")
    with pytest.raises(ModelRefused, match="contain 2 tensors instead of 7"):
        GgufFiles.open(file)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"general.architecture": "clip"}, r"\(mmproj\) of a model; give the file of the language model"),
        ({"general.architecture": "llama", "general.type": "mmproj"}, "mmproj"),
        ({"general.architecture": "llama", "general.type": "adapter"}, "a LoRA adapter; give a complete model"),
        ({"general.architecture": "controlvector"}, "a control vector"),
        ({"general.type": "imatrix"}, "an importance matrix"),
    ],
)
def test_a_file_that_is_no_language_model_is_named_by_its_contents(fields: dict[str, str], words: str, tmp_path: Path):
    with pytest.raises(ModelRefused, match=rf"m\.gguf is .*{words}"):
        GgufFiles.open(write_gguf(tmp_path / "m.gguf", fields, {"a": ("F32", ROW)}))


def test_a_vocabulary_alone_is_rejected(tmp_path: Path):
    with pytest.raises(ModelRefused, match="no tensors, only a vocabulary"):
        GgufFiles.open(write_gguf(tmp_path / "m.gguf", {"general.architecture": "llama"}, {}))


def test_the_revision_changes_with_header_size_and_time(tmp_path: Path):
    file = tiny_gguf(tmp_path / "m.gguf")
    os.utime(file, ns=(1, 1))
    revisions = [GgufFiles.open(file).revision]
    with file.open("ab") as stream:
        stream.write(b"\0")
    os.utime(file, ns=(1, 1))
    revisions.append(GgufFiles.open(file).revision)
    os.utime(file, ns=(1, 2))
    revisions.append(GgufFiles.open(file).revision)
    raw = file.read_bytes()
    file.write_bytes(raw.replace(b"llama.block_count", b"llama.block_couns"))
    os.utime(file, ns=(1, 2))
    revisions.append(GgufFiles.open(file).revision)
    assert len(set(revisions)) == 4
    assert GgufFiles.open(file).revision == revisions[-1]


def test_types_of_matrices_are_ordered_by_their_weights(tmp_path: Path):
    tensors = {"a": ("F32", ROW), "b": ("Q8_0", ROW), "c": ("Q8_0", ROW), "d": ("F32", ROW[0])}
    opened = GgufFiles.open(write_gguf(tmp_path / "m.gguf", {}, tensors))
    assert [kind.name for kind in opened.matrix_types] == ["Q8_0", "F32"]
