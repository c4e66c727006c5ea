"""Incremental detokenization: takes token ids one by one, and returns text as soon as it is final.

Rules of this file:
- Only complete characters are returned: bytes of an incomplete one are held back. U+FFFD is returned only for bytes
  that cannot become a character, or for an incomplete character at the end of the text (`flush`). An answer that was
  cut has no such end (`complete_rest`): tokens that follow may complete the character.
- The concatenated text is the same as the text of the complete list of ids.
- O(1) per token: at most three bytes are held back (or `MAX_WINDOW` tokens, for unknown decoders).
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Container, Mapping, Sequence

from app.text.reading.marks import SHOWN
from app.text.tokens.pieces import Piece, Pieces

MAX_WINDOW = 16
_REPLACEMENT = "\ufffd"


def incomplete_end(raw: bytes) -> bytes:
    """Return the bytes at the end of a text that begin a character; at most three."""
    end = raw[-3:]
    return end[codecs.utf_8_decode(end, "replace", False)[1] :]


class PieceDetokenizer:
    """The text of one growing list of token ids, for a known decoder (see `pieces`). Not thread-safe: one owner.

    It follows the tokens `before`: a character that they begin belongs to its text.
    """

    __slots__ = ("_at_start", "_is_plain", "_num_spaces_to_drop", "_pending", "_pieces")

    def __init__(self, pieces: Pieces, before: Sequence[int] = ()) -> None:
        self._pieces = pieces
        self._pending = incomplete_end(b"".join(_bytes_of(pieces[token_id]) for token_id in before[-3:]))
        self._at_start = pieces.has_start_rules and not self._pending
        self._num_spaces_to_drop = pieces.num_leading_spaces
        # No bytes are held back, and the rules of the start do not apply: a str piece is returned as it is.
        self._is_plain = not self._at_start and not self._pending

    def append(self, token_id: int) -> str:
        """Return the text that is final with the next token, possibly none."""
        piece = self._pieces[token_id]
        if self._is_plain and piece.__class__ is str:
            return piece
        if self._at_start:
            return self._append_at_start(token_id)
        return self._join(piece)

    def flush(self) -> str:
        """Return the rest at the end of the text: U+FFFD for an incomplete character."""
        text = self._pending.decode("utf-8", "replace")
        self._pending = b""
        return text

    def _append_at_start(self, token_id: int) -> str:
        if self._num_spaces_to_drop:
            text = self._join(self._pieces[token_id])
            kept = text[: self._num_spaces_to_drop].lstrip(" ") + text[self._num_spaces_to_drop :]
            self._num_spaces_to_drop -= len(text) - len(kept)
            self._at_start = not kept and self._num_spaces_to_drop > 0
        else:
            piece = self._pieces.first(token_id)
            if piece is None:
                return ""
            self._at_start = False
            kept = self._join(piece)
        self._is_plain = not self._at_start and not self._pending
        return kept

    def _join(self, piece: Piece) -> str:
        raw = self._pending + _bytes_of(piece)
        text, num_used = codecs.utf_8_decode(raw, "replace", False)
        self._pending = raw[num_used:]
        self._is_plain = not self._pending and not self._at_start
        return text


class WindowDetokenizer:
    """The same for any decoder: decodes the last few tokens again, and returns the new part of the text.

    The window includes tokens before the new ones, because decoders treat the first token differently.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], skipped: Container[int] = ()) -> None:
        self._decode = decode
        self._skipped = skipped
        self._window: list[int] = []
        self._num_known = 0
        self._known = ""

    def append(self, token_id: int) -> str:
        """Return the text that is final with the next token, possibly none."""
        if token_id in self._skipped:
            return ""
        self._window.append(token_id)
        text = self._decode(self._window)
        is_incomplete = text.endswith(_REPLACEMENT) and len(self._window) - self._num_known < MAX_WINDOW
        if is_incomplete or len(text) <= len(self._known):
            return ""
        return self._advance(text)

    def flush(self) -> str:
        """Return the rest at the end of the text: U+FFFD for an incomplete character."""
        return self._advance(self._decode(self._window))

    def _advance(self, text: str) -> str:
        new = text[len(self._known) :]
        del self._window[: self._num_known]
        self._num_known = len(self._window)
        self._known = self._decode(self._window)
        return new


class ShowingDetokenizer:
    """A detokenizer that adds the text of some special tokens, each behind `SHOWN`, for the parsers of answers.

    The character `SHOWN` in the text of another token becomes U+FFFD.
    """

    def __init__(self, inner: PieceDetokenizer | WindowDetokenizer, shown: Mapping[int, str]) -> None:
        self._inner = inner
        self._shown = shown

    def append(self, token_id: int) -> str:
        """Return the text that is final with the next token, possibly none."""
        mark = self._shown.get(token_id)
        if mark is None:
            return self._inner.append(token_id).replace(SHOWN, _REPLACEMENT)
        return complete_rest(self) + SHOWN + mark  # a budget of reasoning may end it within a character

    def flush(self) -> str:
        """Return the rest at the end of the text: U+FFFD for an incomplete character."""
        return self._inner.flush().replace(SHOWN, _REPLACEMENT)


def complete_rest(detokenizer: Detokenizer) -> str:
    """Return the rest of a text that ends here, without the character that is incomplete."""
    return detokenizer.flush().rstrip(_REPLACEMENT)


def _bytes_of(piece: Piece) -> bytes:
    return piece.encode() if isinstance(piece, str) else piece


Detokenizer = PieceDetokenizer | WindowDetokenizer | ShowingDetokenizer
