"""The maximum length of a token's text, which shows that a text is far too long without encoding it."""

from __future__ import annotations

import json
import math
import sys
from typing import Any

import tokenizers
from tokenizers import models, pre_tokenizers

# Canonical composition merges at most four characters (Unicode Standard Annex 15, "Maximum Expansion Factor").
MAX_COMPOSED = 4
_KEEPING = {"Prepend", "Lowercase", "NFD", "NFKD", "ByteLevel"}
_COMPOSING = {"NFC", "NFKC"}
_SPLITTING = {"ByteLevel", "Digits", "Metaspace"}


def max_token_chars(backend: tokenizers.Tokenizer) -> int:
    """Return the maximum number of characters of a text in one token, at least 1: the length of the longest token.

    `sys.maxsize` for a tokenizer that may drop characters, or may encode a text of any length as one token (unknown
    words, tokens that include surrounding spaces). Takes about 0.4 µs per token of the vocabulary.
    """
    normalizers = _steps(backend.normalizer, "normalizers")
    if not (_keeps_every_character(backend) and all(map(_is_keeping, normalizers))):
        return sys.maxsize
    shrinking = math.prod(MAX_COMPOSED for step in normalizers if step["type"] in _COMPOSING)
    return _longest_spelling(backend) * shrinking


def _longest_spelling(backend: tokenizers.Tokenizer) -> int:
    # A token's spelling in the vocabulary has one character per byte or per character: it is not shorter than its text.
    spellings: list[str | None] = list(map(backend.id_to_token, range(backend.get_vocab_size())))
    if None in spellings:  # the ids have gaps
        spellings = list(backend.get_vocab())
    return max((len(spelling) for spelling in spellings if spelling), default=1)


def _keeps_every_character(backend: tokenizers.Tokenizer) -> bool:
    """Return whether every character is encoded in a token that contains it or one of its bytes."""
    model = backend.model
    if not isinstance(model, models.BPE) or model.continuing_subword_prefix or model.end_of_word_suffix:
        return False
    if any(token.lstrip or token.rstrip for token in backend.get_added_tokens_decoder().values()):
        return False
    splits = _steps(backend.pre_tokenizer, "pretokenizers")
    if not all(step["type"] in _SPLITTING or step.get("behavior", "Removed") != "Removed" for step in splits):
        return False
    if model.byte_fallback:
        needed = [f"<0x{byte:02X}>" for byte in range(256)]
    elif any(step["type"] == "ByteLevel" for step in splits):
        needed = pre_tokenizers.ByteLevel.alphabet()
    else:
        return False
    return all(backend.token_to_id(spelling) is not None for spelling in needed)


def _is_keeping(normalizer: dict[str, Any]) -> bool:
    if normalizer["type"] == "Replace":
        old = normalizer["pattern"].get("String")
        return old is not None and len(old) <= len(normalizer["content"])
    return normalizer["type"] in _KEEPING | _COMPOSING


def _steps(component: Any, parts: str) -> list[dict[str, Any]]:
    """Return the steps of a normalizer or pre-tokenizer in order, as in tokenizer.json."""
    return [] if component is None else _flatten(json.loads(component.__getstate__()), parts)


def _flatten(step: dict[str, Any], parts: str) -> list[dict[str, Any]]:
    if step["type"] != "Sequence":
        return [step]
    return [inner for part in step[parts] for inner in _flatten(part, parts)]
