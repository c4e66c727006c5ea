"""Headers of GGUF files: correct ones are read, all others are rejected in one line before memory is allocated."""

from __future__ import annotations

import os
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from app.checkpoint.gguf_files import GgufFiles
from app.checkpoint.gguf_header import read_header
from app.checkpoint.gguf_spec import read_gguf_spec
from app.contract.errors import ModelRefused
from tests.gguf_writer import ARRAY, BOOL, STRING, U32, entry, gguf_bytes, key, string, tiny_gguf, write_gguf

FEW = [key("general.architecture", "llama"), key("llama.block_count", 2)]
ONE = [entry("a.weight", (32, 2))]
DATA = bytes(256)


def typed(kind: int, raw: bytes) -> bytes:
    """A value with its type, for `key`."""
    return struct.pack("<I", kind) + raw


def array(kind: int, count: int, raw: bytes = b"") -> bytes:
    """An array that announces `count` elements."""
    return typed(ARRAY, struct.pack("<IQ", kind, count) + raw)


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


HOSTILE: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "not a GGUF file"),
    "short": (b"GGUF\3\0\0\0" + bytes(8), "not a GGUF file"),
    "magic": (gguf_bytes(FEW, ONE, DATA, start=b"GGML\3\0\0\0"), "not a GGUF file"),
    "version 1": (gguf_bytes(FEW, ONE, DATA, start=b"GGUF\1\0\0\0"), "version 1"),
    "version 4": (gguf_bytes(FEW, ONE, DATA, start=b"GGUF\4\0\0\0"), "version 4"),
    "big endian": (gguf_bytes(FEW, ONE, DATA, start=b"GGUF\0\0\0\3"), "big-endian"),
    "tensors": (gguf_bytes(FEW, ONE, DATA, counts=(65537, 2)), "65537 tensors"),
    "more tensors": (gguf_bytes(FEW, ONE, DATA, counts=(9, 2)), "truncated|name"),
    "keys": (gguf_bytes(FEW, ONE, DATA, counts=(1, 4097)), "4097 keys"),
    "more keys": (gguf_bytes(FEW, ONE, DATA, counts=(1, 9)), "m.gguf"),
    "key twice": (gguf_bytes([FEW[0], FEW[0]], ONE, DATA), "general.architecture twice"),
    "empty key": (gguf_bytes([key("", 1)], ONE, DATA), "not printable"),
    "long key": (gguf_bytes([key("a" * 256, 1)], ONE, DATA), "256 bytes"),
    "key with a line": (gguf_bytes([key("a\nb", 1)], ONE, DATA), "not printable"),
    "key no UTF-8": (gguf_bytes([key(b"\xff", 1)], ONE, DATA), "not UTF-8"),
    "long string": (gguf_bytes([key("a", typed(STRING, struct.pack("<Q", 2**20 + 1)))], ONE, DATA), "1048577 bytes"),
    "string beyond": (gguf_bytes([key("a", typed(STRING, struct.pack("<Q", 2**20)))], ONE, DATA), "truncated"),
    "string no UTF-8": (gguf_bytes([key("a", typed(STRING, string(b"\xc3")))], ONE, DATA), "not UTF-8"),
    "kind": (gguf_bytes([key("a", typed(13, bytes(8)))], ONE, DATA), "unknown type 13"),
    "flag": (gguf_bytes([key("a", typed(BOOL, b"\2"))], ONE, DATA), "neither true nor false"),
    "nested": (gguf_bytes([key("a", array(ARRAY, 1, bytes(12)))], ONE, DATA), "unsupported type 9"),
    "array kind": (gguf_bytes([key("a", array(99, 1, bytes(12)))], ONE, DATA), "unsupported type 99"),
    "array of flags": (gguf_bytes([key("a", array(BOOL, 2, b"\0\3"))], ONE, DATA), "neither true nor false"),
    "long array": (gguf_bytes([key("a", array(U32, 2**21 + 1))], ONE, bytes(2**24)), "2097153 elements"),
    "array beyond": (gguf_bytes([key("a", array(U32, 10**6))], ONE, DATA), "1000000 elements"),
    "texts beyond": (gguf_bytes([key("a", array(STRING, 10**5))], ONE, DATA), "100000 elements"),
    "text in array": (gguf_bytes([key("a", array(STRING, 1, struct.pack("<Q", 2**30)))], ONE, DATA), "bytes"),
    **{
        f"alignment {value!r}": (gguf_bytes([key("general.alignment", value)], ONE, DATA), "power of two")
        for value in (0, 3, 2**17, True, 32.0, "32", [32])
    },
    "tensor twice": (gguf_bytes(FEW, [ONE[0], entry("a.weight", (32, 1), 0, 256)], bytes(512)), "a.weight twice"),
    "long name": (gguf_bytes(FEW, [entry("a" * 64, (32,))], DATA), "64 bytes"),
    "name with a line": (gguf_bytes(FEW, [entry("a\rb", (32,))], DATA), "not printable"),
    "no dimensions": (gguf_bytes(FEW, [entry("a", ())], DATA), "0 dimensions"),
    "5 dimensions": (gguf_bytes(FEW, [entry("a", (1,) * 5)], DATA), "5 dimensions"),
    "2^32 dimensions": (gguf_bytes(FEW, [string("a") + b"\xff" * 4], DATA), "dimensions"),
    "size 0": (gguf_bytes(FEW, [entry("a", (32, 0))], DATA), "impossible shape"),
    "overflow": (gguf_bytes(FEW, [entry("a", (2**32, 2**32))], DATA), "impossible shape"),
    "overflow to little": (gguf_bytes(FEW, [entry("a", (2**63, 2, 1))], DATA), "impossible shape"),
    "type": (gguf_bytes(FEW, [entry("a", (32,), 42)], DATA), "tensor type 42.*Q4_K_M"),
    "removed type": (gguf_bytes(FEW, [entry("a", (32,), 4)], DATA), "tensor type 4"),
    "half a block": (gguf_bytes(FEW, [entry("a", (48,), 2)], DATA), "48 columns.*Q4_0"),
    "offset": (gguf_bytes(FEW, [entry("a", (32,), 0, 8)], DATA), "not a multiple of 32"),
    "offset beyond": (gguf_bytes(FEW, [entry("a", (32,), 0, 2**63)], DATA), "after the end"),
    "data beyond": (gguf_bytes(FEW, [entry("a", (32, 3))], DATA), "ends 128 bytes after the end"),
    "overlap": (gguf_bytes(FEW, [entry("a", (32,)), entry("b", (32,), 0, 96)], DATA), "data of b overlaps"),
    "same place": (gguf_bytes(FEW, [entry("a", (32,)), entry("b", (32,))], DATA), "overlaps"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_header_is_rejected_in_one_line(name: str, tmp_path: Path):
    raw, words = HOSTILE[name]
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
        read_gguf_spec(GgufFiles.open(file))
    except ModelRefused as error:
        assert "\n" not in error.message and len(error.message) < 1200, error.message
        return True
    return False


def test_no_changed_byte_of_a_header_does_harm(tmp_path: Path):
    """Many changes are harmless, such as those of a letter in a name that nobody reads."""
    raw = bytearray(minimal(tmp_path))
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
    raw, changed = minimal(tmp_path), struct.pack("<Q", number)
    for position in range(8, raw.index(b"output.weight") + 60):
        is_rejected(tmp_path / "m.gguf", raw[:position] + changed + raw[position + 8 :])


def test_no_hostile_header_allocates_memory(tmp_path: Path):
    raw, numbers = minimal(tmp_path), (2**16 + 1, 2**31, 2**32, 2**48, 2**62, 2**63, 2**64 - 1)
    crafted = [raw for raw, _ in HOSTILE.values()]
    for number in numbers:
        changed = struct.pack("<Q", number)
        crafted += [raw[:begin] + changed + raw[begin + 8 :] for begin in (8, 16, 24)]
        crafted += [raw.replace(struct.pack("<Q", length), changed, 1) for length in (4, 5, 20)]
    tracemalloc.start()
    assert all(is_rejected(tmp_path / "m.gguf", raw) for raw in crafted if len(raw) < 2**20)
    assert tracemalloc.get_traced_memory()[1] < 4 << 20
    tracemalloc.stop()


def test_a_file_cut_anywhere_is_rejected(tmp_path: Path):
    raw = minimal(tmp_path)
    assert all(is_rejected(tmp_path / "m.gguf", raw[:length]) for length in range(0, len(raw) - 32, 13))


def minimal(folder: Path) -> bytes:
    """A model of one layer without a tokenizer, in two kilobytes."""
    fields = {
        "general.architecture": "llama", "llama.block_count": 1, "llama.context_length": 64,
        "llama.embedding_length": 4, "llama.feed_forward_length": 4, "llama.attention.head_count": 2,
        "llama.attention.layer_norm_rms_epsilon": 1e-5, "tokenizer.ggml.tokens": ["a", "b"],
        "tokenizer.ggml.eos_token_id": 1,
    }  # fmt: skip
    matrix, vector = ("F32", np.ones((4, 4), np.float32)), ("F32", np.ones(4, np.float32))
    names = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
    tensors = {"token_embd.weight": matrix, "output_norm.weight": vector}
    tensors |= {f"blk.0.{name}.weight": vector for name in ("attn_norm", "ffn_norm")}
    tensors |= {f"blk.0.{name}.weight": matrix for name in names}
    return write_gguf(folder / "minimal.gguf", fields, {**tensors, "output.weight": matrix}).read_bytes()


def test_the_model_of_these_tests_is_correct(tmp_path: Path):
    assert not is_rejected(tmp_path / "m.gguf", minimal(tmp_path))


def test_a_pipe_and_a_folder_are_rejected(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe.gguf")
    (tmp_path / "folder.gguf").mkdir()
    for name in ("pipe.gguf", "folder.gguf"):
        with pytest.raises(ModelRefused, match="not a regular file"):
            read_header(tmp_path / name)


def test_a_header_has_at_most_256_mib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("app.checkpoint.gguf_header._CHUNK_BYTES", 100)
    monkeypatch.setattr("app.checkpoint.gguf_header.MAX_HEADER_BYTES", 1000)
    with pytest.raises(ModelRefused, match="header has more than 1000 bytes"):
        read_header(tiny_gguf(tmp_path / "m.gguf"))


def test_all_arrays_together_are_limited(tmp_path: Path):
    many = [key(f"a{index}", array(BOOL, 2**21, bytes(2**21))) for index in range(3)]
    (tmp_path / "m.gguf").write_bytes(gguf_bytes(many, ONE, DATA))
    with pytest.raises(ModelRefused, match="array a2 announces"):
        read_header(tmp_path / "m.gguf")
