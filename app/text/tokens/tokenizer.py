"""The tokenizer of a model folder: text to token ids and back, with `tokenizers` and tokenizer.json.

The ids are the same as those of transformers. Special tokens around a text (often a BOS) are defined by the
post-processor in tokenizer.json; like transformers, this module ignores `add_bos_token` and `add_eos_token` beside that
file. Only caches change after loading, so every method may be called from any thread.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import tokenizers

from app.checkpoint.checkpoint_folder import check_no_pointer
from app.checkpoint.text_files import FolderText
from app.contract.admission import too_long
from app.contract.errors import NOT_OURS, InvalidValue, ModelRefused
from app.runtime.lazy_property import lazy_property
from app.text.tokens.detokenizer import Detokenizer, PieceDetokenizer, ShowingDetokenizer, WindowDetokenizer
from app.text.tokens.max_token_length import max_token_chars
from app.text.tokens.pieces import Pieces, read_rules

MAX_TOKENIZER_BYTES = 128 * 2**20  # a large one (262,144 tokens) has 33 MiB
COUNT_CHARS = 2**16  # characters of a long text that are encoded at once to count its tokens
COUNT_MARGIN = 17 / 16  # factor by which the count must exceed the limit, because splitting a text may add tokens
_UP_TO_A_WORD = re.compile(r"[\s\S]*(?:\n(?=\w)|\S(?= \S))")  # no token spans both sides of its end
_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class Part(NamedTuple):
    """A part of a prompt; with `is_literal`, special tokens in it are encoded as text."""

    text: str
    is_literal: bool


class TokenizerSource(NamedTuple):
    """The source from which another process makes the same tokenizer.

    `file` is a tokenizer.json. `special_texts` are of tokens that are special, whether it says so or not.
    """

    file: bytes
    named_tokens: Mapping[str, str]
    special_texts: Sequence[str] = ()


class Tokenizer:
    """Encodes prompts and decodes answers of one model. Any thread."""

    def __init__(
        self, backend: tokenizers.Tokenizer, named_tokens: Mapping[str, str], source: TokenizerSource | None = None
    ) -> None:
        self._backend = backend
        self._source = source
        added = backend.get_added_tokens_decoder()
        special_ids = [token_id for token_id, token in added.items() if token.special]
        self.special_tokens = {added[token_id].content: token_id for token_id in special_ids}
        self.named_tokens = dict(named_tokens)
        self.vocab_size = backend.get_vocab_size()
        eos_token = named_tokens.get("eos_token")
        self.eos_token_id = None if eos_token is None else backend.token_to_id(eos_token)
        rules = read_rules(None if backend.decoder is None else json.loads(backend.decoder.__getstate__()))
        self._pieces = None if rules is None else Pieces(rules, backend.id_to_token, special_ids)
        self._all_pieces = None if rules is None else Pieces(rules, backend.id_to_token)

    @classmethod
    def load(cls, text: FolderText) -> Tokenizer:
        """Read tokenizer.json, tokenizer_config.json and special_tokens_map.json of a model's folder. Blocks.

        Raises:
            ModelRefused: a file is missing, too large or damaged; the message names it.
        """
        file, backend = _read_backend(text.folder / "tokenizer.json")
        config = text.read("tokenizer_config.json")
        named_tokens = _named_tokens(text.read("special_tokens_map.json") | config)
        source = TokenizerSource(file, named_tokens, [*named_tokens.values(), *_extra_tokens(config)])
        _complete(backend, source)
        return cls(backend, named_tokens, source)

    @classmethod
    def from_source(cls, source: TokenizerSource) -> Tokenizer:
        """Return the tokenizer whose source this is, in another process."""
        backend = tokenizers.Tokenizer.from_buffer(source.file)
        _complete(backend, source)
        return cls(backend, source.named_tokens)

    def read_source(self) -> TokenizerSource:
        """Return the source from which another process makes the same tokenizer: 0.1 to 33 MB.

        Of a tokenizer that has no file it is written at the first call, with the interpreter's lock: 0.8 s for 262,144
        tokens.
        """
        if self._source is None:
            self._source = TokenizerSource(self._backend.to_str().encode(), self.named_tokens)
        return self._source

    @property
    def has_token_bytes(self) -> bool:
        """Whether a text is made of the bytes of its tokens, whatever stands beside them."""
        return self._pieces is not None

    @lazy_property
    def max_token_chars(self) -> int:
        """The maximum number of characters in one token: see `max_token_length`. Computed at the first use."""
        return max_token_chars(self._backend)

    def check_num_chars(self, num_chars: int, max_tokens: int) -> None:
        """Reject a text of so many characters that certainly has more than `max_tokens` tokens, before it is encoded.

        Raises:
            ContextLengthExceeded: it would not fit even if it consisted of the longest tokens only.
        """
        if num_chars > max_tokens and num_chars > max_tokens * self.max_token_chars:
            raise too_long(max_tokens, f"The prompt has {num_chars} characters, more than fit")

    def encode(self, text: str, *, add_special_tokens: bool = True, max_tokens: int | None = None) -> list[int]:
        """Return the ids of `text`; the texts of special tokens in it become those tokens, as in transformers.

        `add_special_tokens` adds the special tokens around a text that tokenizer.json defines (often a BOS). A text
        with certainly more than `max_tokens` tokens is rejected before it is encoded completely; one with a few more
        may be returned. Other threads can run meanwhile.

        Raises:
            InvalidValue: `text` contains a lone surrogate, which is invalid Unicode.
            ContextLengthExceeded: see `max_tokens`.
        """
        if max_tokens is not None and len(text) > COUNT_CHARS and len(text.encode(errors="surrogatepass")) > max_tokens:
            self._check_count(text, max_tokens)
        return self._encode(text, add_special_tokens=add_special_tokens).ids

    def encode_parts(self, parts: Iterable[Part], *, max_tokens: int | None = None) -> list[int]:
        """Return the ids of all parts, without special tokens around them; for `max_tokens` see `encode`.

        Raises:
            InvalidValue: a literal part can only be encoded as a special token, or contains a lone surrogate.
            ContextLengthExceeded: see `encode`.
        """
        newline_ids = self.encode("\n", add_special_tokens=False)
        token_ids: list[int] = []
        for part in parts:
            if max_tokens is not None and len(token_ids) > max_tokens:
                raise too_long(max_tokens, f"The prompt has more than {max_tokens} tokens")
            token_ids += self._encode_part(part, newline_ids, max_tokens, is_first=not token_ids)
        return token_ids

    def count_parts(self, parts: Iterable[Part]) -> int:
        """Return the number of ids that `encode_parts` returns, and raise the same errors but for the length.

        It takes the memory of a piece, however long a part is. A long part is cut between words, which leaves the count
        as it is; where it has none for COUNT_CHARS characters, a cut may add a token.
        """
        newline_ids = self.encode("\n", add_special_tokens=False)
        count = 0
        for text, is_literal in parts:
            for piece in [text] if is_literal else _pieces(text):
                count += len(self._encode_part(Part(piece, is_literal), newline_ids, None, is_first=not count))
        return count

    def decode(self, token_ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of `token_ids`, the same as from a detokenizer with a final `flush`."""
        pieces = self._pieces if skip_special_tokens else self._all_pieces
        if pieces is None:
            return self._backend.decode(list(token_ids), skip_special_tokens=skip_special_tokens)
        detokenizer = PieceDetokenizer(pieces)
        return "".join([detokenizer.append(token_id) for token_id in token_ids]) + detokenizer.flush()

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes of one token inside a text; empty for an id outside the vocabulary."""
        if self._all_pieces is None:
            return (self._backend.id_to_token(token_id) or "").encode()
        piece = self._all_pieces[token_id]
        return piece.encode() if isinstance(piece, str) else piece

    def vocabulary_bytes(self, count: int) -> list[bytes]:
        """Return the bytes of all ids below `count`, as `token_bytes` does, of a tokenizer that has token bytes.

        Unlike `token_bytes`, it keeps none of them.
        """
        assert self._all_pieces is not None
        return self._all_pieces.all_bytes(count)

    def token_string(self, token_id: int) -> str:
        """Return the string of a token in the vocabulary, such as `Ġa` or `▁a`; empty for an id outside of it."""
        return self._backend.id_to_token(token_id) or ""

    def token_id(self, text: str) -> int | None:
        """Return the id of the token whose text is exactly `text`; None if there is none."""
        return self._backend.token_to_id(text)

    def new_detokenizer(self, shown_token_ids: Collection[int] = (), before: Sequence[int] = ()) -> Detokenizer:
        """Return a detokenizer for one sequence; special tokens add no text, but for `shown_token_ids`.

        The text of a shown token comes behind the character `SHOWN`. A character that the tokens `before` leave
        incomplete belongs to the text.
        """
        plain: PieceDetokenizer | WindowDetokenizer
        if self._pieces is None:
            plain = WindowDetokenizer(self._backend.decode, frozenset(self.special_tokens.values()))
        else:
            plain = PieceDetokenizer(self._pieces, before)
        if not shown_token_ids:
            return plain
        shown = {token_id: text for text, token_id in self.special_tokens.items() if token_id in shown_token_ids}
        return ShowingDetokenizer(plain, shown)

    def _encode(self, text: str, *, add_special_tokens: bool) -> tokenizers.Encoding:
        try:
            # `encode` would hold the interpreter's lock, and compute offsets that are not needed.
            return self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0]
        except TypeError:
            raise InvalidValue(
                "The text contains a lone surrogate; it must be valid Unicode.", param="prompt"
            ) from None

    def _check_count(self, text: str, max_tokens: int) -> None:
        """Reject a long text as soon as the tokens of its beginning are certainly too many.

        Splitting the text may divide a word and add tokens. So the count is an estimate, used with a margin.
        """
        count = 0
        for start in range(0, len(text), COUNT_CHARS):
            count += len(self._encode(text[start : start + COUNT_CHARS], add_special_tokens=False))
            if count > max_tokens * COUNT_MARGIN:
                raise too_long(max_tokens, f"The prompt has more than {max_tokens} tokens")

    def _encode_part(
        self, part: Part, newline_ids: list[int], max_tokens: int | None, *, is_first: bool
    ) -> Sequence[int]:
        if is_first and not part.is_literal:
            return self.encode(part.text, add_special_tokens=False, max_tokens=max_tokens)
        return self._encode_inside(part.text, part.is_literal, newline_ids, max_tokens) if part.text else ()

    def _encode_inside(self, text: str, is_literal: bool, newline_ids: list[int], max_tokens: int | None) -> list[int]:
        # Sentencepiece models add a space before a text, but not after a newline: encode the text after one.
        def encode(text: str) -> list[int]:
            if is_literal:
                return self._encode_literal(text)
            return self.encode(text, add_special_tokens=False, max_tokens=max_tokens)

        after_newline = encode("\n" + text)
        is_clean = after_newline[: len(newline_ids)] == newline_ids
        token_ids = after_newline[len(newline_ids) :] if is_clean else encode(text)
        if is_literal and self.special_tokens.get(text) in token_ids:
            raise InvalidValue(f"This model cannot encode {text!r} as text; leave it out.", param="messages")
        return token_ids

    def _encode_literal(self, text: str) -> list[int]:
        # The flag `encode_special_tokens` does the same, but it belongs to the tokenizer, which all threads share.
        backend = self._backend
        if backend.normalizer is not None:
            text = backend.normalizer.normalize_str(text)
        words = [text]
        if backend.pre_tokenizer is not None:
            words = [word for word, _ in backend.pre_tokenizer.pre_tokenize_str(text)]
        return [token.id for word in words for token in backend.model.tokenize(word)]


def _pieces(text: str) -> Iterator[str]:
    """Yield a text in pieces of at most COUNT_CHARS characters, cut between words where there are some."""
    start = 0
    while len(text) - start > COUNT_CHARS:
        found = _UP_TO_A_WORD.match(text, start, start + COUNT_CHARS)
        end = start + COUNT_CHARS if found is None else found.end()
        yield text[start:end]
        start = end
    yield text[start:]


def _read_backend(file: Path) -> tuple[bytes, tokenizers.Tokenizer]:
    try:
        if file.stat().st_size > MAX_TOKENIZER_BYTES:
            raise ModelRefused(
                f"{file} is larger than {MAX_TOKENIZER_BYTES} bytes, the limit for tokenizers; check the file.",
                param="model",
            )
        data = file.read_bytes()
        check_no_pointer(file, data)
        return data, tokenizers.Tokenizer.from_buffer(data)
    except FileNotFoundError:
        raise ModelRefused(
            f"{file.parent} has no tokenizer.json; save the tokenizer again with transformers' save_pretrained.",
            param="model",
        ) from None
    except OSError as error:
        raise ModelRefused(f"Cannot read {file}: {error.strerror}.", param="model") from None
    except (ModelRefused, *NOT_OURS):
        raise
    except BaseException as error:  # `tokenizers` has no specific errors, and its panics are not Exceptions
        raise ModelRefused(
            f"{file} is damaged ({str(error)[:200]}); download the model again.", param="model"
        ) from None


def _named_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the texts of `bos_token` etc., each given as a string or as a serialized added token."""
    texts = {name: _token_text(config.get(name)) for name in _NAMES}
    return {name: text for name, text in texts.items() if text is not None}


def _extra_tokens(config: Mapping[str, Any]) -> list[str]:
    lists = [config.get(name) for name in ("additional_special_tokens", "extra_special_tokens")]
    values = [value for found in lists if isinstance(found, list) for value in found]
    return [text for value in values if (text := _token_text(value)) is not None]


def _token_text(value: object) -> str | None:
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) and text else None


def _complete(backend: tokenizers.Tokenizer, source: TokenizerSource) -> None:
    """Change a tokenizer that was read from a file as the files beside it say, and so that it encodes whole texts."""
    _mark_special(backend, source.special_texts)
    backend.no_truncation()
    backend.no_padding()


def _mark_special(backend: tokenizers.Tokenizer, texts: Iterable[str]) -> None:
    """Mark tokens as special that are so in the configuration; those outside the vocabulary are ignored."""
    special = {token.content for token in backend.get_added_tokens_decoder().values() if token.special}
    backend.add_special_tokens([t for t in texts if t not in special and backend.token_to_id(t) is not None])
