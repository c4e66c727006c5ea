"""The vocabulary of a model as the grammar library needs it: made once, while the model loads.

Making it keeps every thread of the process waiting for 0.01 to 2.5 s, because the library holds the interpreter's lock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from app.contract.errors import InvalidValue, UnsupportedParameter
from app.text.grammar.number_digits import NumberDigits
from app.text.tokens.tokenizer import Part, Tokenizer

if TYPE_CHECKING:
    from llguidance import LLTokenizer

# Sets of tokens that a mask allows as a whole. Masks of strings near their maximum length are slow, since the tokens
# outside are looked at one set after the other: with more lengths masks take longer, and so does reading a vocabulary.
SLICE_LENGTHS = (10, 20)
CHARACTERS = r'[^"\\\x00-\x1F\x7F]'
SLICES = (r"[ \t\n\r]+", *(f"{CHARACTERS}{{1,{length}}}" for length in SLICE_LENGTHS), f"{CHARACTERS}+")
MAX_FORCED_CHARS = 128
"""The longest text that must come whose tokens are told at once. The library asks for all of it before each mask, with
the interpreter's lock; a grammar of 2 KB can force megabytes. A step drafts far fewer tokens. Where they are few tokens
it is longer."""
_NUM_TRIMMED = 2  # of the tokens of a text's beginning: what follows may change them
_MIN_TOLD = 8  # more than the library looks back on or drops, or it would take the beginning for the whole


def mask_words(vocab_size: int) -> int:
    """Return the 32-bit words of a mask: a bit for each token of the model, and one that no token has."""
    return vocab_size // 32 + 1


class GrammarVocabulary:
    """The tokens of one model: of its tokenizer, and padding ids that no grammar allows. Any thread.

    The ids `eos_token_ids` end an answer; a model without any ends where the grammar is complete. `tokens` are what
    `all_tokens` returns, if that is known.

    Attributes:
        backend: the library's tokenizer; its masks have `mask_words(vocab_size)` words.
        newline_id: the token of a newline; None if there is none.
        digits: what ends numbers.

    Raises:
        UnsupportedParameter: the text of a token depends on its neighbours, or the library cannot read the tokenizer.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        vocab_size: int,
        eos_token_ids: Sequence[int],
        tokens: Sequence[bytes] | None = None,
    ) -> None:
        check_supported(tokenizer)
        try:
            import llguidance  # 0.1 s, on the engine thread rather than before the page can be served

            eos = list(eos_token_ids) or [vocab_size]
            ours = _OurTokenizer(tokenizer, all_tokens(tokenizer, vocab_size) if tokens is None else tokens, eos)
            self.backend: LLTokenizer = llguidance.LLTokenizer(cast(Any, ours), eos_token=eos, slices=list(SLICES))
            self.newline_id = ours.ids.get(b"\n")
            self.digits = NumberDigits(ours.tokens)
        except Exception as error:  # the library has no errors of its own
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            raise UnsupportedParameter(f"Grammars are not supported for this model's tokenizer: {reason}.") from error


def check_supported(tokenizer: Tokenizer) -> None:
    """Raise UnsupportedParameter for a tokenizer that certainly does not support grammars."""
    if not tokenizer.has_token_bytes:
        raise UnsupportedParameter(
            "Grammars are not supported for this model's tokenizer: the text of a token depends on its neighbours."
        )


def all_tokens(tokenizer: Tokenizer, vocab_size: int) -> list[bytes]:
    """Return the bytes of all tokens of a model, none for padding, and none for an id that no token has. Any thread.

    It takes 3 µs for each, without keeping other threads waiting.
    """
    count = min(tokenizer.vocab_size, vocab_size)
    return tokenizer.vocabulary_bytes(count) + [b""] * (vocab_size + 1 - count)


class _OurTokenizer:
    """Our tokenizer as the library calls it, for the tokens of a text that must come."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, tokens: Sequence[bytes], eos_token_ids: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self.eos_token_id = eos_token_ids[0]
        self.tokens = tokens
        # Other added tokens, such as `<tool_call>` of Qwen, are text in an answer, so they are text of a grammar.
        # Where the library reads a file itself it makes all of them special, and no grammar would allow them.
        special = {*tokenizer.special_tokens.values(), *eos_token_ids}
        self.special_token_ids = sorted(token_id for token_id in special if token_id < len(tokens))
        self._special = frozenset(self.special_token_ids)
        self.ids = {token: token_id for token_id, token in enumerate(tokens) if token and token_id not in self._special}

    def __call__(self, text: bytes | str) -> list[int]:
        """Return the ids of a text, which comes as bytes or as a string, or of the beginning of a long one.

        Joined, their bytes are those of the text: neither with a space before them, as sentencepiece models begin, nor
        with a special token where the text spells one. Behind the beginning of a long text the library may add tokens
        of a character that is not complete: what it calls forced is uncertain then, but every mask is right.
        """
        given = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
        length = MAX_FORCED_CHARS
        while length < len(given):
            token_ids = self._encode(given[:length])[:-_NUM_TRIMMED]
            if len(token_ids) > _MIN_TOLD:
                return token_ids
            length *= 2
        return self._encode(given)

    def _encode(self, text: str) -> list[int]:
        token_ids = self._tokenizer.encode(text, add_special_tokens=False)
        if self._are_of(token_ids, text):
            return token_ids
        with suppress(InvalidValue):
            token_ids = self._tokenizer.encode_parts([Part(text, is_literal=True)])
        return token_ids if self._are_of(token_ids, text) else _longest_tokens(text.encode(), self.ids)

    def _are_of(self, token_ids: Sequence[int], text: str) -> bool:
        return (
            self._special.isdisjoint(token_ids)
            and b"".join(self.tokens[token_id] for token_id in token_ids) == text.encode()
        )


def _longest_tokens(text: bytes, ids: Mapping[bytes, int]) -> list[int]:
    """Split a text into the longest tokens from its beginning on, up to what no token begins with."""
    longest = max(map(len, ids), default=0)
    token_ids, position = [], 0
    while position < len(text):
        for end in range(min(position + longest, len(text)), position, -1):
            if (token_id := ids.get(text[position:end])) is not None:
                token_ids.append(token_id)
                position = end
                break
        else:
            break
    return token_ids
