"""A tokenizer for a model that is only a shape: `--load-format dummy` needs nothing but a config.json."""

from __future__ import annotations

from pathlib import Path

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from app.checkpoint import read_json
from app.errors import ModelRefused
from app.text.tokenizer import Tokenizer

MAX_VOCABULARY = 2**22


def load_tokenizer(folder: Path, load_format: str) -> Tokenizer:
    """Load the tokenizer of `folder`; with `load_format` "dummy" a missing tokenizer.json is made up. Blocks.

    Raises:
        ModelRefused: a file is missing, too large or damaged; the message names it.
    """
    if load_format != "dummy" or (folder / "tokenizer.json").exists():
        return Tokenizer.load(folder)
    vocab_size = read_json(folder / "config.json").get("vocab_size")
    if not isinstance(vocab_size, int) or not 1 <= vocab_size <= MAX_VOCABULARY:
        raise ModelRefused(
            f"{folder / 'config.json'}: vocab_size is {vocab_size!r}; it must be a number.", param="model"
        )
    return placeholder_tokenizer(vocab_size)


def placeholder_tokenizer(vocab_size: int) -> Tokenizer:
    """Return a tokenizer whose first 256 ids are bytes; every further id reads as a space and its number."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = alphabet[:vocab_size] + [f"Ġ{index}" for index in range(len(alphabet), vocab_size)]
    backend = tokenizers.Tokenizer(models.BPE({piece: index for index, piece in enumerate(pieces)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    return Tokenizer(backend, {})
