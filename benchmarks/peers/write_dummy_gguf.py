"""A GGUF file of dummy weights: `python -m benchmarks.peers.write_dummy_gguf SHAPE Q4_K_M|Q8_0|BF16 FILE`.

Random bytes are valid blocks, once their factors are numbers, so a file is written as fast as random bytes are made.
Needs the `gguf` package on the path.
"""

from __future__ import annotations

import itertools
import string
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import gguf
import numpy as np
from tokenizers import pre_tokenizers

from benchmarks.cpu.gguf.dummies import DUMMIES, Dummy, Tensor

SEED = 0
DEVIATION = 0.02  # of weights
PIECE_BLOCKS = 1 << 16

# The halves of a block, by where they stand: what makes the deviation of weights 1 if all other bits are random.
HALVES: Mapping[str, Mapping[int, float]] = {
    "Q8_0": {0: 1 / 73.9},
    "Q5_0": {0: 1 / 9.23},
    "Q4_K": {0: 1 / 258, 2: 7.5 / 258},
    "Q5_K": {0: 1 / 527, 2: 15.5 / 527},
    "Q6_K": {208: 1 / 1366},
}


def write(shape: str, form: str, file: Path) -> None:
    """Write a dummy of a named shape in a format."""
    dummy = DUMMIES[shape]
    tensors = list(dummy.tensors(form))
    writer = gguf.GGUFWriter(file, dummy.architecture)
    for name, value in dummy.metadata().items():
        if isinstance(value, int):
            writer.add_uint32(name, int(value))
        else:
            writer.add_float32(name, value)
    add_words(writer, dummy)
    for tensor in tensors:
        add_entry(writer, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    rng = np.random.Generator(np.random.SFC64(SEED))
    assert writer.fout is not None
    (output,) = writer.fout
    for tensor in tensors:
        writer.write_padding(output, output.tell())
        for piece in pieces(tensor, rng):
            output.write(piece.data)
        writer.write_padding(output, output.tell())
    writer.close()


def add_words(writer: gguf.GGUFWriter, dummy: Dummy) -> None:
    """Write a byte-level BPE tokenizer: all bytes, then words of letters; random ids need no other."""
    letters = string.ascii_lowercase
    words = ("".join(word) for length in (2, 3, 4) for word in itertools.product(letters, repeat=length))
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merged = list(itertools.islice(words, dummy.vocab_size - len(alphabet)))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([*alphabet, *merged])
    writer.add_token_types([gguf.TokenType.NORMAL] * dummy.vocab_size)
    writer.add_token_merges([f"{word[:-1]} {word[-1]}" for word in merged])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    writer.add_add_bos_token(False)


def add_entry(writer: gguf.GGUFWriter, tensor: Tensor) -> None:
    """Announce a tensor."""
    kind = gguf.GGMLQuantizationType[tensor.kind]
    block, size = gguf.GGML_QUANT_SIZES[kind]
    *rows, num_columns = tensor.shape
    stored = (*rows, num_columns // block * size)
    # The shape of a quantized tensor is given in bytes.
    shape, dtype = (tensor.shape, np.float32) if tensor.kind == "F32" else (stored, np.uint8)
    writer.add_tensor_info(tensor.name, shape, np.dtype(dtype), int(np.prod(stored)), kind)


def pieces(tensor: Tensor, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Yield the bytes of a tensor, piece by piece: norms are 1, other float32 and all else random."""
    kind, count = tensor.kind, int(np.prod(tensor.shape))
    if kind == "F32":
        is_norm = len(tensor.shape) == 1
        values = np.ones(count) if is_norm else DEVIATION * rng.standard_normal(count)
        yield values.astype(np.float32).view(np.uint8)
        return
    block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    left = count // block
    while left > 0:
        num = min(left, PIECE_BLOCKS * 32 // block)
        yield encoded(kind, rng, num, size)
        left -= num


def encoded(kind: str, rng: np.random.Generator, count: int, size: int) -> np.ndarray:
    """Return so many random blocks of `size` bytes."""
    raw = np.frombuffer(rng.bytes(count * size), np.uint8).copy()
    if kind == "BF16":
        # A sign, an exponent of four (2^-9 to 2^-6), seven bits: the deviation is DEVIATION, about.
        words = raw.view(np.uint16)
        words[:] = words & 0x807F | (words & 3) + 118 << 7
        return raw
    blocks = raw.reshape(count, size)
    for place, half in HALVES[kind].items():
        blocks[:, place : place + 2] = np.full(count, DEVIATION * half, np.float16).view(np.uint8).reshape(count, 2)
    return raw


if __name__ == "__main__":
    write(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
