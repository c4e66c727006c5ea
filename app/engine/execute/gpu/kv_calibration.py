"""Calibrates the scales of an FP8 KV cache on a fixed text, before the server is ready.

The text is part of the package, so a model has the same scales at every start, and nothing of what clients send has an
influence on them.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from app.checkpoint.spec import ModelSpec
from app.contract.errors import ConfigurationError
from app.kernels.ops import Ops, PagedBatch
from app.kernels.triton.attention.work import MixedWork
from app.models.decoder import Arena, Decoder
from app.models.kv_scales import KVScales
from app.models.loader import DTYPES
from app.models.rope import query_scales, rope_tables
from app.models.weights import DecoderWeights
from app.text.tokens.tokenizer import Tokenizer

MAX_TOKENS = 512
# As of most caches: with one block for the whole text a kernel needs more registers than there are (Triton 3.7).
BLOCK_SIZE = 16
_TEXT = Path(__file__).with_suffix(".txt")


class ListingOps(Ops, Protocol):
    """Ops of a GPU, where attention goes through lists of work."""

    @property
    def mixed_work(self) -> MixedWork:
        """Makes the lists."""


def calibration_ids(tokenizer: Tokenizer, spec: ModelSpec) -> list[int]:
    """Return the tokens of the text, as many as are used."""
    token_ids = tokenizer.encode(_TEXT.read_text(encoding="utf-8"))
    return [token_id for token_id in token_ids if token_id < spec.vocab_size][: min(MAX_TOKENS, spec.max_position)]


@torch.inference_mode()
def calibrate(
    spec: ModelSpec, weights: DecoderWeights, ops: ListingOps, device: torch.device, ids: list[int]
) -> KVScales:
    """Compute the text once, with a cache of the model's own type, and return the scales of its keys and values.

    Takes memory for the activations and the cache of the text meanwhile. Engine thread only; waits for the device.

    Raises:
        ConfigurationError: there are no tokens, or keys or values that are no finite numbers.
    """
    if not ids:
        raise _impossible("the tokenizer makes no token of the calibration text that the model knows")
    cache = compute_text(spec, weights, ops, device, ids)
    keys_LG, values_LG = cache.abs().amax(dim=(2, 3, 5)).float().cpu().unbind(1)
    for layer, largest_G in enumerate(torch.cat([keys_LG, values_LG], 1)):
        if not bool(largest_G.isfinite().all()):
            raise _impossible(f"layer {layer} computes keys or values that are no finite numbers")
    return KVScales.for_largest(keys_LG, values_LG)


def compute_text(
    spec: ModelSpec, weights: DecoderWeights, ops: ListingOps, device: torch.device, ids: list[int]
) -> Tensor:
    """Compute the text as one prompt; return its keys and values [layers, 2, blocks, slots, kv heads, width]."""
    num_tokens, dtype = len(ids), DTYPES[spec.dtype]
    numbers = partial(torch.tensor, dtype=torch.int32, device=device)
    positions_T, state_rows_T = numbers(range(num_tokens)), numbers([1] * num_tokens)
    work, num_programs = _work(ops.mixed_work, num_tokens)
    # One sequence, its table in state row 1: row 0 and block 0 are padding.
    num_blocks = -(-num_tokens // BLOCK_SIZE)
    tables_SB = numbers([[0] * num_blocks, range(1, num_blocks + 1)])
    batch = PagedBatch(num_tokens, positions_T, state_rows_T, tables_SB, BLOCK_SIZE, work.to(device), num_programs)
    block = (BLOCK_SIZE, spec.num_kv_heads, spec.head_dim)
    cache = torch.zeros(spec.num_layers, 2, 1 + num_blocks, *block, dtype=dtype, device=device)
    ropes = rope_tables(spec, num_tokens, torch.float32, device)
    arena = Arena.allocate(spec, num_tokens, 1, dtype, device=device)
    decoder = Decoder(spec, weights, ropes, ops, query_scales(spec, num_tokens, device))
    ops.begin_step(batch)
    logit_rows_R = numbers([0] * len(arena.logits_RV))
    layers = [(layer[0], layer[1]) for layer in cache]
    decoder.forward(numbers(ids), logit_rows_R, layers, arena.first(num_tokens, len(logit_rows_R)))
    return cache


def _work(mixed_work: MixedWork, num_tokens: int) -> tuple[Tensor, int]:
    """Return the lists of one prompt, which may be longer than a step's, and the programs that share out its pieces."""
    made, sizes = mixed_work.of([0], [num_tokens], num_tokens), mixed_work.sizes
    work = torch.zeros(max(sizes.length, sizes.first_tile + made.tiles_TX.size), dtype=torch.int32)
    for begin, numbers in made.numbers(sizes):
        work[begin : begin + len(numbers)] = torch.from_numpy(numbers)
    return work, made.num_programs


def _impossible(reason: str) -> ConfigurationError:
    return ConfigurationError(
        f"kv_cache_dtype fp8 needs scales for keys and values. The checkpoint contains none, and they cannot be "
        f"calibrated: {reason}. Leave the setting out.",
        param="kv_cache_dtype",
    )
