"""Headers of GGUF files: correct ones are read, all others are rejected in one line before memory is allocated."""

from __future__ import annotations

import os
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from app.checkpoint.gguf.gguf_header import read_header
from app.checkpoint.gguf.gguf_model import read_gguf
from app.config.settings import ModelConfig
from app.contract.errors import ModelRefused
from tests.checkpoint.gguf.hostile_gguf import DATA, FEW, HOSTILE_HEADERS, ONE, array, minimal
from tests.gguf_writer import BOOL, gguf_bytes, key, tiny_gguf, write_gguf
from tests.own_process import in_own_process


def test_values_of_all_types_are_read(tmp_path: Path):
    fields = {
        "general.architecture": "llama", "a.int": 7, "a.negative": -7, "a.float": 0.5, "a.flag": True,
        "a.texts": ["über", "", "猫"], "a.numbers": [1, 2, 3], "a.floats": [0.5, -1.5],
    }  # fmt: skip
    header = read_header(write_gguf(tmp_path / "m.gguf", fields, {"t": ("F32", np.ones((2, 4), np.float32))}))
    assert header.fields == {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}
    tensor = header.tensors["t"]
    assert (tensor.shape, tensor.type.name, tensor.end - tensor.begin) == ((2, 4), "F32", 32)
    assert tensor.file.read_bytes()[tensor.begin : tensor.end] == np.ones(8, np.float32).tobytes()


@pytest.mark.parametrize("alignment", [8, 32, 4096])
def test_the_data_begins_at_a_multiple_of_the_alignment(alignment: int, tmp_path: Path):
    tensors = {name: ("F32", np.full(3, float(index), np.float32)) for index, name in enumerate("abc")}
    file = write_gguf(tmp_path / "m.gguf", {"general.alignment": alignment}, tensors, alignment)
    raw = file.read_bytes()
    for index, tensor in enumerate(read_header(file).tensors.values()):
        assert tensor.begin % alignment == 0
        assert raw[tensor.begin : tensor.end] == np.full(3, float(index), np.float32).tobytes()


def test_version_2_is_read(tmp_path: Path):
    (tmp_path / "m.gguf").write_bytes(gguf_bytes(FEW, ONE, DATA, start=b"GGUF\2\0\0\0"))
    assert read_header(tmp_path / "m.gguf").fields["llama.block_count"] == 2


@pytest.mark.parametrize("name", HOSTILE_HEADERS)
def test_a_hostile_header_is_rejected_in_one_line(name: str, tmp_path: Path):
    raw, words = HOSTILE_HEADERS[name]
    file = tmp_path / "m.gguf"
    file.write_bytes(raw)
    with pytest.raises(ModelRefused, match=words) as rejection:
        read_header(file)
    message = rejection.value.message
    assert str(file) in message and "\n" not in message and len(message) < 600
    assert rejection.value.param == "model" and rejection.value.exit_code == 2


def is_rejected(file: Path, raw: bytes) -> bool:
    """Whether a file is rejected; anything but a line of ours fails the test."""
    file.write_bytes(raw)
    try:
        read_gguf(file, ModelConfig())
    except ModelRefused as error:
        assert "\n" not in error.message and len(error.message) < 1200, error.message
        return True
    return False


def test_no_changed_byte_of_a_header_does_harm(tmp_path: Path):
    """Many changes are harmless, such as those of a letter in a name that nobody reads."""
    raw = bytearray(minimal())
    end = raw.index(b"output.weight") + 60
    rejected = 0
    for position in range(end):
        mask = 0xFF if position % 3 else 0x01
        raw[position] ^= mask
        rejected += is_rejected(tmp_path / "m.gguf", bytes(raw))
        raw[position] ^= mask
    assert rejected > end // 2
    assert not is_rejected(tmp_path / "m.gguf", bytes(raw))


@pytest.mark.parametrize("number", [2**33, 2**63])
def test_no_number_of_a_header_does_harm(number: int, tmp_path: Path):
    """Counts, lengths, sizes and offsets among them, as each byte may begin one."""
    raw, changed = minimal(), struct.pack("<Q", number)
    for position in range(8, raw.index(b"output.weight") + 60):
        is_rejected(tmp_path / "m.gguf", raw[:position] + changed + raw[position + 8 :])


def peak_of_hostile_headers(file: Path) -> int:
    """The most bytes that Python held while it rejected each."""
    raw, numbers = minimal(), (2**16 + 1, 2**31, 2**32, 2**48, 2**62, 2**63, 2**64 - 1)
    crafted = [raw for raw, _ in HOSTILE_HEADERS.values()]
    for number in numbers:
        changed = struct.pack("<Q", number)
        crafted += [raw[:begin] + changed + raw[begin + 8 :] for begin in (8, 16, 24)]
        crafted += [raw.replace(struct.pack("<Q", length), changed, 1) for length in (4, 5, 20)]
    tracemalloc.start()
    assert all(is_rejected(file, raw) for raw in crafted if len(raw) < 2**20)
    return tracemalloc.get_traced_memory()[1]


def test_no_hostile_header_allocates_memory(tmp_path: Path):
    assert in_own_process(peak_of_hostile_headers, tmp_path / "m.gguf") < 4 << 20


def test_a_file_cut_anywhere_is_rejected(tmp_path: Path):
    raw = minimal()
    assert all(is_rejected(tmp_path / "m.gguf", raw[:length]) for length in range(0, len(raw) - 32, 13))


def test_the_model_of_these_tests_is_correct(tmp_path: Path):
    assert not is_rejected(tmp_path / "m.gguf", minimal())


def test_a_pipe_and_a_folder_are_rejected(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe.gguf")
    (tmp_path / "folder.gguf").mkdir()
    for name in ("pipe.gguf", "folder.gguf"):
        with pytest.raises(ModelRefused, match="not a regular file"):
            read_header(tmp_path / name)


def test_a_header_has_at_most_256_mib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("app.checkpoint.gguf.gguf_header._CHUNK_BYTES", 100)
    monkeypatch.setattr("app.checkpoint.gguf.gguf_header.MAX_HEADER_BYTES", 1000)
    with pytest.raises(ModelRefused, match="header has more than 1000 bytes"):
        read_header(tiny_gguf(tmp_path / "m.gguf"))


def test_all_arrays_together_are_limited(tmp_path: Path):
    many = [key(f"a{index}", array(BOOL, 2**21, bytes(2**21))) for index in range(3)]
    (tmp_path / "m.gguf").write_bytes(gguf_bytes(many, ONE, DATA))
    with pytest.raises(ModelRefused, match="array a2 announces"):
        read_header(tmp_path / "m.gguf")
