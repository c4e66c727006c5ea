"""The vocabulary in GGUF metadata: the values of the keys tokenizer.ggml.*, checked, without any tokenizer library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from math import isfinite
from typing import Any

from app.checkpoint.gguf.gguf_spec import END_IDS, MAX_VOCABULARY
from app.contract.errors import ModelRefused

PREFIX = "tokenizer.ggml."
MAX_TOKEN_CHARS = 1024  # the longest token of a well-known model has 256
MAX_SPECIAL_CHARS = 128
MAX_ADDED_TOKENS = 2**16  # Gemma 3 has 6,400
# By their names in templates: their keys in GGUF metadata.
_NAMED_TOKENS = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "sep_token": "seperator_token_id",  # spelled so in the format
    "pad_token": "padding_token_id",
    "cls_token": "cls_token_id",
    "mask_token": "mask_token_id",
}
# Prompts and answers need these; as in llama.cpp, a wrong id of another (2^32 - 1 for none) is no id.
_NEEDED = ("bos_token_id", "unknown_token_id", *END_IDS)


class TokenType(IntEnum):
    """The values of `tokenizer.ggml.token_type`."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The tokens by id with their types, and the ids by token; `named_tokens` has the texts of `bos_token` etc."""

    tokens: Sequence[str]
    types: Sequence[int]
    ids: dict[str, int]
    named_tokens: dict[str, str]
    special: Sequence[str]
    user_defined: Sequence[str]


def read_vocabulary(metadata: Mapping[str, object]) -> Vocabulary:
    """Read and check the tokens and their types.

    Raises:
        ModelRefused: a key is missing, has the wrong type or an impossible value; the message names it.
    """
    tokens = read_list(metadata, "tokens", (str,))
    if not 1 <= len(tokens) <= MAX_VOCABULARY:
        raise damaged("tokens", f"has {len(tokens)} tokens; there must be between 1 and {MAX_VOCABULARY}")
    longest = max(map(len, tokens))
    if longest > MAX_TOKEN_CHARS:
        raise damaged("tokens", f"has a token of {longest} characters; at most {MAX_TOKEN_CHARS} are allowed")
    ids = dict(zip(tokens, range(len(tokens)), strict=True))
    if len(ids) < len(tokens):
        twice = next(token for index, token in enumerate(tokens) if ids[token] != index)
        raise damaged("tokens", f"contains {twice!r:.40} twice")
    types = read_list(metadata, "token_type", (int,))
    if len(types) != len(tokens):
        raise damaged("token_type", f"has {len(types)} elements for {len(tokens)} tokens")
    if min(types) < min(TokenType) or max(types) > max(TokenType):
        raise damaged("token_type", f"has elements outside {min(TokenType)} to {max(TokenType)}")
    found = {key: read_id(metadata, key, len(tokens)) for key in _NEEDED}
    others = {key: metadata.get(PREFIX + key) for key in _NAMED_TOKENS.values() if key not in found}
    found |= {key: index for key, index in others.items() if type(index) is int and 0 <= index < len(tokens)}
    ends = [found[key] for key in END_IDS]
    named_tokens = {name: tokens[index] for name, key in _NAMED_TOKENS.items() if (index := found.get(key)) is not None}
    special = _special_ids(types, [found["bos_token_id"], *ends])
    user_defined = [index for index in _of_kinds(types, TokenType.USER_DEFINED) if index not in special]
    _check_added([tokens[index] for index in special], len(special) + len(user_defined))
    return Vocabulary(
        tokens, types, ids, named_tokens, [tokens[i] for i in sorted(special)], [tokens[i] for i in user_defined]
    )


def _special_ids(types: Sequence[int], named: Sequence[int | None]) -> set[int]:
    # Some files have ends of answers of type normal. In transformers named tokens are special, whatever their type.
    special = _of_kinds(types, TokenType.CONTROL, TokenType.UNKNOWN)
    return {*special, *(index for index in named if index is not None)}


def _of_kinds(types: Sequence[int], *kinds: TokenType) -> list[int]:
    """Return the ids of the tokens of some types."""
    wanted = frozenset(map(int, kinds))  # comparing with members of an enumeration is slower
    return [index for index, kind in enumerate(types) if kind in wanted]


def _check_added(special: Sequence[str], num_added: int) -> None:
    if num_added > MAX_ADDED_TOKENS:
        raise damaged("token_type", f"has {num_added} special tokens; at most {MAX_ADDED_TOKENS} are allowed")
    longest = max(map(len, special), default=0)
    if longest > MAX_SPECIAL_CHARS:
        raise damaged("tokens", f"has a special token of {longest} characters; at most {MAX_SPECIAL_CHARS} are allowed")


def read_scores(metadata: Mapping[str, object], num_tokens: int) -> Sequence[float]:
    """Return the score of each token.

    Raises:
        ModelRefused: they are missing, or are not one finite number for each token.
    """
    scores = read_list(metadata, "scores", (float, int))
    if len(scores) != num_tokens:
        raise damaged("scores", f"has {len(scores)} elements for {num_tokens} tokens")
    if not all(map(isfinite, scores)):
        raise damaged("scores", "has elements that are not finite")
    return scores


def read_list(metadata: Mapping[str, object], key: str, kinds: tuple[type, ...]) -> Sequence[Any]:
    """Return the list with the given types of elements under tokenizer.ggml.`key`.

    Raises:
        ModelRefused: it is missing or something else.
    """
    value = metadata.get(PREFIX + key)
    if value is None:
        raise damaged(key, "is missing")
    if not isinstance(value, (list, tuple)) or not set(map(type, value)) <= set(kinds):
        raise damaged(key, f"must be a list of {' or '.join(kind.__name__ for kind in kinds)}")
    return value


def read_flag(metadata: Mapping[str, object], key: str, default: bool) -> bool:
    """Return the boolean under tokenizer.ggml.`key`.

    Raises:
        ModelRefused: it is something else.
    """
    value = metadata.get(PREFIX + key, default)
    if not isinstance(value, bool):
        raise damaged(key, f"is {value!r:.40}; it must be true or false")
    return value


def read_id(metadata: Mapping[str, object], key: str, num_tokens: int) -> int | None:
    """Return the token id under tokenizer.ggml.`key`, or None if it is missing.

    Raises:
        ModelRefused: it is not the id of a token.
    """
    value = metadata.get(PREFIX + key)
    if value is None:
        return None
    if type(value) is not int or not 0 <= value < num_tokens:
        raise damaged(key, f"is {value!r:.40}; it must be an id below {num_tokens}, the number of tokens")
    return value


def damaged(key: str, problem: str) -> ModelRefused:
    """Return the error for a wrong value of tokenizer.ggml.`key`."""
    return ModelRefused(f"{PREFIX}{key} {problem}; download the GGUF file again, or take another one.", param="model")
