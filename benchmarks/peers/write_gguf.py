"""A checkpoint's weights for llama.cpp: `python -m benchmarks.peers.write_gguf MODEL_FOLDER bf16|q8_0|q4_0 FILE`.

Needs the `gguf` package on the path. All matrices get the type, the embedding too, which is the output head as well;
norms are float32, as llama.cpp wants them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy
import torch
from safetensors import safe_open
from torch import Tensor

TYPES = {
    "bf16": (gguf.GGMLQuantizationType.BF16, gguf.LlamaFileType.MOSTLY_BF16),
    "q8_0": (gguf.GGMLQuantizationType.Q8_0, gguf.LlamaFileType.MOSTLY_Q8_0),
    "q4_0": (gguf.GGMLQuantizationType.Q4_0, gguf.LlamaFileType.MOSTLY_Q4_0),
}
ARCHITECTURES = {"llama": gguf.MODEL_ARCH.LLAMA, "qwen3": gguf.MODEL_ARCH.QWEN3}


def write(folder: Path, kind: str, file: Path) -> None:
    """Write the Llama or Qwen3 of `folder` as `kind` into `file`."""
    config = json.loads((folder / "config.json").read_text())
    matrix_type, file_type = TYPES[kind]
    architecture = ARCHITECTURES[config["model_type"]]
    writer = gguf.GGUFWriter(file, config["model_type"])
    writer.add_file_type(file_type)
    add_shape(writer, config)
    add_tokenizer(writer, json.loads((folder / "tokenizer.json").read_text())["model"])
    names = gguf.get_tensor_name_map(architecture, config["num_hidden_layers"])
    with safe_open(folder / "model.safetensors", framework="pt") as tensors:
        for name in tensors.keys():  # noqa: SIM118
            stored = names.get_name(name, try_suffixes=(".weight",))
            assert stored is not None, name
            add_tensor(writer, stored, with_neighbours(name, tensors.get_tensor(name), config), matrix_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_shape(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    """Write what llama.cpp must know of the model's shape."""
    writer.add_vocab_size(config["vocab_size"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])


def add_tokenizer(writer: gguf.GGUFWriter, model: dict[str, Any]) -> None:
    """Write a byte-level BPE tokenizer; it is loaded, but random ids need none."""
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.NORMAL] * len(tokens))
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    writer.add_add_bos_token(False)


def with_neighbours(name: str, tensor: Tensor, config: dict[str, Any]) -> Tensor:
    """Reorder the rows of a Llama's query and key: llama.cpp turns neighbours where the checkpoint's halves turn."""
    heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}.get(name.split(".")[-2])
    if heads is None or config.get("model_type", "llama") != "llama":
        return tensor
    halves = tensor.view(config[heads], 2, config["head_dim"] // 2, tensor.shape[1])
    return halves.transpose(1, 2).reshape(tensor.shape)


def add_tensor(writer: gguf.GGUFWriter, name: str, tensor: Tensor, matrix_type: gguf.GGMLQuantizationType) -> None:
    """Write a tensor: matrices as `matrix_type`, norms as float32."""
    values: numpy.ndarray = tensor.to(torch.float32).numpy()
    if tensor.dim() == 1:
        writer.add_tensor(name, values)
    else:
        writer.add_tensor(name, gguf.quants.quantize(values, matrix_type), raw_dtype=matrix_type)


if __name__ == "__main__":
    write(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
