"""The cells of the benchmark `cpu`, and the limits of a machine. No torch.

A cell is one model in one number format with a number of concurrent requests: 128 tokens in, 64 out, greedy.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, cast

from app.commands.measuring.workload import MAX_NEW, MAX_PROMPT, SHAPES
from benchmarks.limits import Limit, limits

OURS = "Quire"
PEER_NAMES = ("llama.cpp", "vLLM", "transformers")

Kind = Literal["decode", "prefill"]
KINDS: tuple[Kind, ...] = ("decode", "prefill")

NUM_PROMPT, NUM_NEW = 128, 64
MAX_MODEL_LEN = 512  # of all sides; the longest request of the mixed load fits
KV_CACHE_BYTES = 1 << 30  # of all sides; more than any cell can use
MEAN_CONTEXT = NUM_PROMPT + NUM_NEW // 2  # of a decode step
KV_ITEM_BYTES = 2

NUM_MIXED = 32  # requests of the mixed load
MIXED_SHAPE, MIXED_FORMAT = "s135", "bf16"
NUM_ONE_BY_ONE = 8  # of them when they are answered one after the other, which is slow and always equally fast
assert MAX_PROMPT + MAX_NEW <= MAX_MODEL_LEN


class Format(NamedTuple):
    """How weights are stored: Quire's `quantization`, llama.cpp's type, bits with scales; what is multiplied."""

    quantization: str | None
    gguf: str
    weight_bits: float
    multiplied: Literal["bf16", "int8"]


FORMATS = {
    "bf16": Format(None, "bf16", 16, "bf16"),
    "int8": Format("int8", "q8_0", 8, "int8"),
    "int4": Format("int4", "q4_0", 4.5, "bf16"),
}


@dataclass(frozen=True, slots=True)
class Cell:
    """What is measured at once."""

    shape: str
    format: str
    batch: int

    def required(self, kind: Kind) -> Limit | None:
        """Return the required ratio to the better peer; None if the ratio is only reported."""
        return limits("cpu").get(f"{self} {kind}")

    @property
    def repeats(self) -> int:
        """Measurements per turn: where one takes milliseconds, the median of several."""
        return 4 if self.shape == "tiny" else 1

    def __str__(self) -> str:
        return f"{self.shape} {self.format} batch {self.batch}"


CELLS = (
    *(Cell("s135", form, batch) for form in FORMATS for batch in (1, 8, 32)),
    *(Cell("tiny", form, batch) for form in ("bf16", "int8") for batch in (1, 8, 32)),
    *(Cell("q05", form, batch) for form in ("bf16", "int8") for batch in (1, 8)),
)


class Rates(NamedTuple):
    """Tokens per second of all requests together: new ones after each first, and those of the prompts."""

    decode: float
    prefill: float


class Probe(NamedTuple):
    """What the machine does per second: bytes read, operations of bf16 and int8 (a product and a sum are two)."""

    read: float
    bf16: float
    int8: float
    how: str

    def speed(self, format_name: str) -> float:
        """Return the operations per second in a format."""
        return self.int8 if FORMATS[format_name].multiplied == "int8" else self.bf16


class Work(NamedTuple):
    """What must be done for `num_tokens` tokens: bytes of weights, of keys and values, and operations."""

    weight_bytes: float
    kv_bytes: int
    operations: int
    num_tokens: int


def rates(batch: int, seconds: float, seconds_of_first: float) -> Rates:
    """Return the rates of `batch` prompts answered with NUM_NEW tokens, and with one."""
    return Rates(batch * (NUM_NEW - 1) / (seconds - seconds_of_first), batch * NUM_PROMPT / seconds_of_first)


def draw_prompts(lengths: Sequence[int], vocab_size: int, seed: str) -> list[list[int]]:
    """Sample prompts of random ids: different ones for every `seed`, so that no cache contains them."""
    rng = random.Random(seed)
    return [rng.choices(range(vocab_size), k=length) for length in lengths]


def vocab_size(shape: str) -> int:
    """Return the number of tokens that a shape knows."""
    return _field(shape, "vocab_size")


def weight_bytes(shape: str, format_name: str) -> float:
    """Return the bytes of all matrices, which every decode step must read; the embedding is the output head as well."""
    return (_layer_weights(shape) + _head_weights(shape)) * FORMATS[format_name].weight_bits / 8


def work(cell: Cell, kind: Kind) -> Work:
    """Return the work that one decode step, or the prefill of all prompts, cannot do without.

    Every weight is read, and multiplied for every token; only last tokens need the output head. Attention's products
    are left out: they are few here.
    """
    head = 2 * _head_weights(cell.shape) * cell.batch
    num_tokens = cell.batch if kind == "decode" else cell.batch * NUM_PROMPT
    context = cell.batch * MEAN_CONTEXT if kind == "decode" else 0
    return Work(
        weight_bytes(cell.shape, cell.format),
        context * kv_token_bytes(cell.shape),
        2 * _layer_weights(cell.shape) * num_tokens + head,
        num_tokens,
    )


def limit(cell: Cell, kind: Kind, machine: Probe) -> float:
    """Return the tokens per second that the machine allows at most."""
    needed = work(cell, kind)
    multiplying_s = max(needed.weight_bytes / machine.read, needed.operations / machine.speed(cell.format))
    return needed.num_tokens / (multiplying_s + needed.kv_bytes / machine.read)


def kv_token_bytes(shape: str) -> int:
    """Return the bytes of one token's keys and values in all layers."""
    kv_size = _field(shape, "num_key_value_heads") * _field(shape, "head_dim")
    return 2 * _field(shape, "num_hidden_layers") * kv_size * KV_ITEM_BYTES


def _layer_weights(shape: str) -> int:
    hidden, width = _field(shape, "hidden_size"), _field(shape, "head_dim")
    queries, kv = _field(shape, "num_attention_heads") * width, _field(shape, "num_key_value_heads") * width
    per_layer = hidden * (2 * queries + 2 * kv + 3 * _field(shape, "intermediate_size"))
    return _field(shape, "num_hidden_layers") * per_layer


def _head_weights(shape: str) -> int:
    return _field(shape, "hidden_size") * _field(shape, "vocab_size")


def _field(shape: str, name: str) -> int:
    return cast("int", SHAPES[shape][name])
