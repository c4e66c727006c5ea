"""The checkpoints of the benchmark `cpu`, for all sides: random weights, written once per shape."""

from __future__ import annotations

import itertools
import json
import string
from collections.abc import Mapping
from pathlib import Path

import tokenizers
import torch
from safetensors.torch import save_file
from tokenizers import decoders, models, pre_tokenizers

from app.checkpoint.checkpoint_folder import Checkpoint
from app.checkpoint.hf_config import read_model
from app.commands.measuring.workload import SHAPES
from app.models.loader import DTYPES, DummySource

SEED = 0


def write_checkpoint(shape: str, folder: Path) -> Path:
    """Write a named shape into a new `folder` as the hub has models (config, safetensors, tokenizer); return it."""
    return write_model(SHAPES[shape], folder)


def write_model(config: Mapping[str, object], folder: Path) -> Path:
    """Write a model of any config.json in the same way."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    _, spec = read_model(Checkpoint.open(folder, with_weights=False))
    source, tensors = DummySource(SEED), {}
    for name, size in spec.tensor_shapes().items():
        tensors[name] = torch.empty(size, dtype=DTYPES[spec.dtype])
        source.read(name, tensors[name])
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    write_tokenizer(folder, spec.vocab_size)
    return folder


def write_tokenizer(folder: Path, vocab_size: int) -> None:
    """Write a byte-level BPE tokenizer of `vocab_size` tokens: all bytes, then words of 2 to 4 letters.

    Random ids are plain text with it, as a trained model's mostly are.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    letters = string.ascii_lowercase
    words = ("".join(word) for length in (2, 3, 4) for word in itertools.product(letters, repeat=length))
    merged = list(itertools.islice(words, vocab_size - len(alphabet)))
    vocabulary = {token: token_id for token_id, token in enumerate([*alphabet, *merged])}
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, [(word[:-1], word[-1]) for word in merged]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
