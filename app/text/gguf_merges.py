"""The merges of a GGUF vocabulary: read from the metadata, or derived from the scores of a sentencepiece vocabulary."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby

from app.contract.errors import ModelRefused
from app.text.gguf_vocabulary import TokenType, Vocabulary, damaged, read_list, read_scores

MAX_MERGES = 2**21
MAX_PREFIXES = 2**23  # compared in all; Gemma 3 has 1.3 million
SPACE = "▁"
# Tokens that are never the result of a merge: special ones, bytes of unknown characters, and fillers.
_NOT_MERGED = {TokenType.UNKNOWN, TokenType.CONTROL, TokenType.UNUSED, TokenType.BYTE}


def read_merges(metadata: Mapping[str, object], ids: Mapping[str, int]) -> list[tuple[str, str]]:
    """Return the pairs of `tokenizer.ggml.merges`, the first one to be merged first.

    Raises:
        ModelRefused: an element is not two tokens that make a third one.
    """
    merges = read_list(metadata, "merges", (str,))
    if len(merges) > MAX_MERGES:
        raise damaged("merges", f"has {len(merges)} elements; at most {MAX_MERGES} are allowed")
    pairs = []
    for merge in merges:
        # The space after the first character: the first token may itself be a space.
        space = merge.find(" ", 1)
        left, right = merge[:space], merge[space + 1 :]
        if space < 0 or left not in ids or right not in ids or left + right not in ids:
            raise damaged("merges", f"contains {merge!r:.80}, which is not two tokens that make a third one")
        pairs.append((left, right))
    return pairs


def respell_spaces(vocabulary: Vocabulary) -> dict[str, int]:
    """Return the ids by token, with `▁` for the spaces that llama.cpp's converter puts into user-defined tokens."""
    spelled = {token: token.replace(" ", SPACE) for token in vocabulary.user_defined if " " in token}
    spelled = {token: spelling for token, spelling in spelled.items() if spelling not in vocabulary.ids}
    return {spelled.get(token, token): index for token, index in vocabulary.ids.items()}


def derive_merges(
    metadata: Mapping[str, object], vocabulary: Vocabulary, ids: Mapping[str, int]
) -> list[tuple[str, str]]:
    """Return all pairs of tokens that make a third one, by its score, highest first, as in transformers.

    `ids` are those of `respell_spaces`. If all scores are the same, lower ids are first.

    Raises:
        ModelRefused: the scores are damaged, or too many tokens begin with other tokens.
    """
    types = vocabulary.types
    scores = read_scores(metadata, len(types))
    pieces = {token: index for token, index in ids.items() if types[index] not in _NOT_MERGED}
    if len({scores[index] for index in pieces.values()}) <= 1:
        scores = range(0, -len(types), -1)
    splits = _splits(pieces)
    order = sorted(sorted(splits), key=scores.__getitem__, reverse=True)
    merges: list[tuple[str, str]] = []
    for _, group in groupby(order, scores.__getitem__):
        same_score = list(group)
        pairs = [pair for index in same_score for pair in splits[index]]
        if len(same_score) > 1:
            pairs.sort(key=lambda pair: (-len(pair[0]), -len(pair[1])))
        merges += pairs
    return merges


def _splits(pieces: Mapping[str, int]) -> dict[int, list[tuple[str, str]]]:
    """Return, by id, every pair of pieces that make the piece of that id, the longest first part first."""
    found: dict[int, list[tuple[str, str]]] = {}
    num_compared = num_found = 0
    # In sorted order a piece follows all that it begins with, so a stack holds them.
    prefixes: list[str] = []
    for piece in sorted(pieces):
        while prefixes and not piece.startswith(prefixes[-1]):
            prefixes.pop()
        pairs = [(prefix, rest) for prefix in reversed(prefixes) if (rest := piece[len(prefix) :]) in pieces]
        if pairs:
            found[pieces[piece]] = pairs
        num_compared += len(prefixes)
        num_found += len(pairs)
        if num_compared > MAX_PREFIXES or num_found > MAX_MERGES:
            raise _too_many(num_found)
        if piece:
            prefixes.append(piece)
    return found


def _too_many(count: int) -> ModelRefused:
    return damaged("tokens", f"has too many tokens that begin with other tokens ({count} merges found)")
