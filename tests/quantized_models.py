"""Small models whose weights are quantized: in a GGUF file, or while their folder is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from tests.checkpoints import tiny
from tests.gguf_blocks import GROUPED, random_blocks
from tests.gguf_writer import model_fields, stored_tensors, text_fields, write_gguf

WIDE = {"hidden_size": 256, "head_dim": 64, "intermediate_size": 512, "num_hidden_layers": 2}
"""Widths that K types can have."""
MIXED = {"attn_v": "Q6_K", "ffn_down": "Q6_K", "ffn_up": "Q5_0", "token_embd": "Q6_K"}
EVERY_TYPE = {
    "attn_q": "Q4_K", "attn_k": "Q5_K", "attn_v": "Q6_K", "attn_output": "Q4_0", "ffn_gate": "Q4_1", "ffn_up": "Q5_0",
    "ffn_down": "Q5_1", "token_embd": "Q6_K", "output": "Q8_0",
}  # fmt: skip
assert set(EVERY_TYPE.values()) == {kind.name for kind in GROUPED}
QUANTIZED = ("every type", "int8", "int4")


def random_gguf(
    file: Path, kind: str, others: Mapping[str, str] | None = None, architecture: str = "Qwen2", **fields: Any
) -> Path:
    """Write a model whose matrices are random blocks: nothing but llama.cpp can quantize to K types.

    `others` has the matrices of another type than `kind`.
    """
    folder = tiny(architecture, **WIDE, **fields)
    tensors = {}
    for name, (_, values) in stored_tensors(folder, architecture).items():
        stored = (others or {}).get(name.removesuffix(".weight").split(".")[-1], kind)
        if values.ndim > 1 and "ffn_gate_inp" not in name:  # routers are numbers in all files
            type = next(type for type in GROUPED if type.name == stored)
            tensors[name] = (stored, random_blocks(type, *values.shape, seed=len(tensors)).numpy())
        else:
            tensors[name] = ("F32", values)
    return write_gguf(file, model_fields(folder, architecture) | text_fields(folder), tensors)


def quantized_model(name: str, *, window: int | None = None) -> dict[str, Any]:
    """The settings of one of QUANTIZED, whose attention sees the last `window` tokens.

    The GGUF file has matrices of every type.
    """
    if name == "every type":
        return {"model": str(_file_of_every_type(window))}
    return {"model": str(tiny("Mistral", sliding_window=window)), "dtype": "bfloat16", "quantization": name}


@cache
def _file_of_every_type(window: int | None) -> Path:
    folder = tiny("Mistral", **WIDE, sliding_window=window).parent
    return random_gguf(folder / f"every-type-{window}.gguf", "Q8_0", EVERY_TYPE, "Mistral", sliding_window=window)
