"""A tokenizer for a model without one: `--load-format dummy` needs only a config.json."""

from __future__ import annotations

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from app.text.tokenizer import Tokenizer


def placeholder_tokenizer(vocab_size: int) -> Tokenizer:
    """Return a tokenizer whose first 256 ids are bytes; the text of every further id is a space and its number."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = alphabet[:vocab_size] + [f"Ġ{index}" for index in range(len(alphabet), vocab_size)]
    backend = tokenizers.Tokenizer(models.BPE({piece: index for index, piece in enumerate(pieces)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    return Tokenizer(backend, {})
