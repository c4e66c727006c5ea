"""Tiny checkpoints with random weights, written without transformers and kept until the test run ends.

`tiny(...)` returns the folder of a model; equal arguments give the same folder, so tests must not change it. A test
that damages a model copies it first (`damaged_copy`).
"""

from __future__ import annotations

import atexit
import json
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import tokenizers
import torch
from safetensors.torch import save_file
from tokenizers import decoders, models, pre_tokenizers, trainers

from app.checkpoint.checkpoint_folder import Checkpoint
from app.checkpoint.fields import Fields
from app.checkpoint.specs.registry import find_family
from benchmarks import checkpoints as real_sizes
from tests.checkpoint.reading import read_spec

ARCHITECTURES = ("Llama", "Mistral", "Qwen2", "Qwen3")
TORCH_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
EXPERTS = {
    "num_experts": 6,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 40,
    "shared_expert_intermediate_size": 72,
}
SPECIAL = ("<s>", "</s>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_CORPUS = ("the quick brown fox jumps over the lazy dog", "blocks, slots, rows and steps", "über 猫 🙂 and back") * 3


def config_json(architecture: str = "Llama", **fields: Any) -> dict[str, Any]:
    """A tiny config.json in the format of the Hugging Face hub; `fields` replace entries, or remove them (None)."""
    config = {
        "architectures": [f"{architecture}ForCausalLM"],
        "model_type": architecture.lower(),
        "vocab_size": 307,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "hidden_act": "silu",
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "eos_token_id": 1,
        **(EXPERTS if "Moe" in architecture else {}),
        "torch_dtype": "float32",
        **({"sliding_window": None} if architecture == "Mistral" else {}),
        **fields,
    }
    return {name: value for name, value in config.items() if value is not None or name == "sliding_window"}


def tiny(
    architecture: str = "Llama", *, seed: int = 0, num_shards: int = 1, template: bool = True, **fields: Any
) -> Path:
    """The folder of a tiny model: config, weights in `torch_dtype`, tokenizer; `fields` go into config.json."""
    return _cached(json.dumps([architecture, seed, num_shards, template, fields], sort_keys=True))


@cache
def real_size(name: str) -> Path:
    """The folder of `long` (context 262,144) or `wide` (vocabulary 151,936), for `--load-format dummy`."""
    return real_sizes.write_checkpoint(name, Path(tempfile.mkdtemp(dir=_root())) / name)


def write_weights(folder: Path, seed: int = 0, num_shards: int = 1) -> None:
    """Write random weights for the config.json of `folder`; queries and keys are large, so that attention is sharp."""
    opened = Checkpoint.open(folder, with_weights=False)
    dtype = TORCH_DTYPES[opened.config["torch_dtype"]]
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, shape in read_spec(opened).tensor_shapes().items():
        noise = torch.randn(shape, generator=generator)
        if name.endswith("norm.weight"):
            noise = 1.0 + 0.2 * noise
        elif name.endswith(".bias"):
            noise = 0.3 * noise
        elif "embed_tokens" not in name:
            noise *= (2.0 if "q_proj" in name or "k_proj" in name else 1.0) / shape[1] ** 0.5
        tensors[name] = noise.to(dtype)
    tensors = _as_stored(opened, tensors)
    if num_shards == 1:
        save_file(tensors, folder / "model.safetensors")
        return
    names = sorted(tensors)
    shards = {f"model-{i + 1:05}-of-{num_shards:05}.safetensors": names[i::num_shards] for i in range(num_shards)}
    for file, held in shards.items():
        save_file({name: tensors[name] for name in held}, folder / file)
    weight_map = {name: file for file, held in shards.items() for name in held}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def _as_stored(opened: Checkpoint, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors under the names of their family, those of one name as one."""
    stored: dict[str, list[torch.Tensor]] = {}
    whole: dict[str, tuple[int, ...]] = {}
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    for name, place in find_family(Fields(opened.config, "config.json")).names.locate(shapes).items():
        stored.setdefault(place.name, []).append(tensors[name])
        whole[place.name] = place.stored_shape(*shapes[name][1:])
    return {name: torch.cat(parts).view(whole[name]) for name, parts in stored.items()}


def write_tokenizer(folder: Path, *, template: bool = True) -> None:
    """Write a byte-level BPE tokenizer of fewer than 300 tokens, all bytes among them, and a ChatML template."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=290,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(_CORPUS, trainer)
    backend.save(str(folder / "tokenizer.json"))
    named = {"bos_token": "<s>", "eos_token": "</s>", "tokenizer_class": "PreTrainedTokenizerFast"}
    config = named | ({"chat_template": CHAT_TEMPLATE} if template else {})
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def damaged_copy(source: Path, target: Path, **fields: Any) -> Path:
    """Copy a model to `target` with `fields` changed in its config.json, for a test to damage further."""
    shutil.copytree(source, target)
    config = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(config | fields))
    return target


@cache
def _root() -> Path:
    root = Path(tempfile.mkdtemp(prefix="quire-checkpoints-"))
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    return root


@cache
def _cached(key: str) -> Path:
    architecture, seed, num_shards, template, fields = json.loads(key)
    folder = Path(tempfile.mkdtemp(prefix=f"tiny-{architecture.lower()}-", dir=_root()))
    (folder / "config.json").write_text(json.dumps(config_json(architecture, **fields)))
    write_weights(folder, seed, num_shards)
    write_tokenizer(folder, template=template)
    return folder
