"""The merges of a GGUF vocabulary: read from the metadata, or derived from the scores of a sentencepiece vocabulary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, groupby

from app.contract.errors import ModelRefused
from app.runtime.gc_tuning import without_gc
from app.text.tokens.gguf.gguf_vocabulary import TokenType, Vocabulary, damaged, read_list, read_scores

MAX_MERGES = 2**21
MAX_PREFIXES = 2**23  # compared in all; Gemma 3 has 1.3 million
SPACE = "▁"
# Tokens that are never the result of a merge: special ones, bytes of unknown characters, and fillers.
_NOT_MERGED = frozenset(map(int, (TokenType.UNKNOWN, TokenType.CONTROL, TokenType.UNUSED, TokenType.BYTE)))


def read_merges(metadata: Mapping[str, object], ids: Mapping[str, int]) -> list[tuple[str, str]]:
    """Return the pairs of `tokenizer.ggml.merges`, the first one to be merged first.

    Raises:
        ModelRefused: an element is not two tokens that make a third one.
    """
    merges = read_list(metadata, "merges", (str,))
    if len(merges) > MAX_MERGES:
        raise damaged("merges", f"has {len(merges)} elements; at most {MAX_MERGES} are allowed")
    # The space after the first character: the first token may itself be a space.
    spaces = [merge.find(" ", 1) for merge in merges]
    pairs = [(merge[:space], merge[space + 1 :]) for merge, space in zip(merges, spaces, strict=True)]
    # In whole lists: a loop over hundreds of thousands of merges that checks each takes three times as long.
    is_known = ids.__contains__
    if min(spaces, default=0) < 0 or not all(map(is_known, chain(chain.from_iterable(pairs), map("".join, pairs)))):
        raise damaged("merges", f"contains {_wrong(merges, ids)!r:.80}, which is not two tokens that make a third one")
    return pairs


def _wrong(merges: Sequence[str], ids: Mapping[str, int]) -> str:
    """Return the first merge that is not two tokens that make a third one."""
    for merge in merges:
        space = merge.find(" ", 1)
        left, right = merge[:space], merge[space + 1 :]
        if space < 0 or left not in ids or right not in ids or left + right not in ids:
            return merge
    raise AssertionError("every merge makes a token")


def respell_spaces(vocabulary: Vocabulary) -> dict[str, int]:
    """Return the ids by token, with `▁` for the spaces that llama.cpp's converter puts into user-defined tokens."""
    spelled = {token: token.replace(" ", SPACE) for token in vocabulary.user_defined if " " in token}
    spelled = {token: spelling for token, spelling in spelled.items() if spelling not in vocabulary.ids}
    if not spelled:
        return vocabulary.ids
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
    pieces = dict(ids)
    for token, kind in zip(ids, types, strict=True):  # they are in the order of their ids
        if kind in _NOT_MERGED:
            del pieces[token]
    first = next(iter(pieces.values()), 0)
    if all(scores[index] == scores[first] for index in pieces.values()):
        scores = range(0, -len(types), -1)
    with without_gc():  # hundreds of thousands of tuples, all of which stay
        return _ordered(_splits(pieces, len(types)), scores)


Pairs = list[tuple[str, str]]


def _ordered(splits: Sequence[Pairs | None], scores: Sequence[float]) -> Pairs:
    """Return all pairs by the score of what they make, highest first; of one score, the longest parts first."""
    order = [index for index, pairs in enumerate(splits) if pairs]
    order.sort(key=scores.__getitem__, reverse=True)
    merges: Pairs = []
    if len(set(map(scores.__getitem__, order))) == len(order):
        for index in order:
            merges += splits[index] or ()
        return merges
    for _, group in groupby(order, scores.__getitem__):
        same_score = list(group)
        pairs = [pair for index in same_score for pair in splits[index] or ()]
        if len(same_score) > 1:
            pairs.sort(key=lambda pair: (-len(pair[0]), -len(pair[1])))
        merges += pairs
    return merges


def _splits(pieces: Mapping[str, int], num_tokens: int) -> list[Pairs | None]:
    """Return, by id, all pairs of pieces that make the piece of that id, the longest first part first."""
    found: list[Pairs | None] = [None] * num_tokens
    num_compared = num_found = 0
    # In sorted order a piece follows all that it begins with, so a stack holds them, the longest one last.
    prefixes: list[str] = []
    for piece in sorted(filter(None, pieces)):
        while prefixes and not piece.startswith(prefixes[-1]):
            prefixes.pop()
        if prefixes:
            pairs = [(prefix, rest) for prefix in prefixes if (rest := piece[len(prefix) :]) in pieces]
            if pairs:
                pairs.reverse()
                found[pieces[piece]] = pairs
                num_found += len(pairs)
            num_compared += len(prefixes)
            if num_compared > MAX_PREFIXES or num_found > MAX_MERGES:
                raise _too_many(num_found)
        prefixes.append(piece)
    return found


def _too_many(count: int) -> ModelRefused:
    return damaged("tokens", f"has too many tokens that begin with other tokens ({count} merges found)")
