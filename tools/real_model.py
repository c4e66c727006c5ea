"""Fetches SmolLM2-135M-Instruct and converts it to a folder of bf16 safetensors: `make real-model`.

The GGUF file is that of `quire serve smollm2`; the folder stands beside it in the cache, and has the same weights,
rounded to bf16. It is what tests marked `real` and measurements of quality compare with. Nothing of it is committed.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from app.checkpoint.hub import smollm2
from app.observe.console import Console

NUM_HEADS, NUM_KV_HEADS = 9, 3
_MODULES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_TOP = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
_PERMUTED = {"attn_q": NUM_HEADS, "attn_k": NUM_KV_HEADS}
_CONFIG = {
    "_name_or_path": "HuggingFaceTB/SmolLM2-135M-Instruct",
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": NUM_HEADS,
    "num_key_value_heads": NUM_KV_HEADS,
    "head_dim": 64,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 100000.0,
    "tie_word_embeddings": True,
    "hidden_act": "silu",
    "torch_dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def folder() -> Path:
    """Return where the converted model is, or will be."""
    return smollm2.local_file().parent / "bf16"


def convert(file: Path, target: Path, *, is_exact: bool = False) -> None:
    """Write the folder; it gets its name when it is complete. Its weights are float32 if it `is_exact`, else bf16."""
    reader = gguf.GGUFReader(file)
    part = target.with_name(f"{target.name}.{os.getpid()}")
    part.mkdir(parents=True)
    try:
        _tokenizer(reader).save(str(part / "tokenizer.json"))
        template = reader.fields["tokenizer.chat_template"].contents()
        settings = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "chat_template": template}
        (part / "tokenizer_config.json").write_text(json.dumps(settings))
        (part / "config.json").write_text(json.dumps(_CONFIG, indent=2))
        weights = ((name, weight if is_exact else _bfloat16(weight)) for name, weight in _weights(reader))
        _write_safetensors(part / "model.safetensors", dict(weights))
        part.rename(target)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _tokenizer(reader: Any) -> Tokenizer:
    """Return the tokenizer of the file's vocabulary; its pre-tokenizer `smollm` splits off single digits."""
    fields = reader.fields
    tokens = fields["tokenizer.ggml.tokens"].contents()
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"].contents()]
    tokenizer = Tokenizer(models.BPE({token: token_id for token_id, token in enumerate(tokens)}, merges))
    splits = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(splits)
    tokenizer.decoder = decoders.ByteLevel()
    kinds = fields["tokenizer.ggml.token_type"].contents()
    control = [token for token, kind in zip(tokens, kinds, strict=True) if kind == gguf.TokenType.CONTROL]
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in control])
    return tokenizer


def _weights(reader: Any) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Yield the name of each tensor in the folder, and its weights."""
    for tensor in reader.tensors:
        weight = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        module = tensor.name.split(".")[-2]
        if num_heads := _PERMUTED.get(module):
            # The file has the two halves of each rotated pair beside each other, transformers one half after the other.
            num_rows, num_columns = weight.shape
            paired = weight.reshape(num_heads, num_rows // num_heads // 2, 2, num_columns)
            weight = paired.swapaxes(1, 2).reshape(num_rows, num_columns)
        yield _name(tensor.name), np.ascontiguousarray(weight)


def _name(name: str) -> str:
    if name in _TOP:
        return _TOP[name]
    _, layer, module, _ = name.split(".")
    return f"model.layers.{layer}.{_MODULES[module]}.weight"


def _bfloat16(weight: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Round to the nearest bf16, ties to even."""
    bits = weight.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def _write_safetensors(file: Path, tensors: dict[str, NDArray[Any]]) -> None:
    """Write float32 tensors, or bf16 as their bits: numpy has no type for them."""
    header, end = {}, 0
    for name, tensor in tensors.items():
        begin, end = end, end + tensor.nbytes
        kind = "F32" if tensor.dtype == np.float32 else "BF16"
        header[name] = {"dtype": kind, "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with file.open("wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors.values():
            stream.write(tensor.tobytes())


def main() -> int:
    """Fetch and convert what is not there; say where it is."""
    file = smollm2.find_or_fetch(Console(sys.stderr))
    if not (folder() / "config.json").exists():
        convert(file, folder())
    print(f"{file}\n{folder()}\n`{sys.executable} -m pytest -m real` runs the tests that use them.")
    return 0


if __name__ == "__main__":
    from app.cli import report_failures

    sys.exit(report_failures("real-model", main))
