"""Incremental detokenizing: token ids go in one by one, valid text comes out as soon as it is certain.

Rules of this file:
- A character comes out whole: bytes of an unfinished one wait. U+FFFD comes out only for bytes that can no longer
  become a character, or for an unfinished one when the text ends (`flush`).
- What comes out over time is what the whole list of ids decodes to, however it is cut.
- O(1) per token: at most three bytes wait (or `MAX_WINDOW` tokens, for decoders this package does not know).
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Container, Sequence
from typing import Protocol

from app.text.pieces import Piece, Pieces

MAX_WINDOW = 16
_REPLACEMENT = "\ufffd"


class Detokenizer(Protocol):
    """The text of one growing list of token ids. Not thread-safe: one owner."""

    def append(self, token_id: int) -> str:
        """Return the text that the next token makes certain, possibly none."""

    def flush(self) -> str:
        """Return what is left when no more tokens come: U+FFFD for an unfinished character."""


class PieceDetokenizer:
    """A `Detokenizer` for tokenizers whose tokens have pieces."""

    __slots__ = ("_at_start", "_is_plain", "_num_spaces_to_drop", "_pending", "_pieces")

    def __init__(self, pieces: Pieces) -> None:
        self._pieces = pieces
        self._pending = b""
        self._at_start = pieces.has_start_rules
        self._num_spaces_to_drop = pieces.num_leading_spaces
        # Nothing waits and the start is over: a str piece is the answer.
        self._is_plain = not self._at_start

    def append(self, token_id: int) -> str:
        """Return the text that the next token makes certain, possibly none."""
        piece = self._pieces[token_id]
        if self._is_plain and piece.__class__ is str:
            return piece
        if self._at_start:
            return self._append_at_start(token_id)
        return self._join(piece)

    def flush(self) -> str:
        """Return what is left when no more tokens come: U+FFFD for an unfinished character."""
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
        raw = self._pending + (piece.encode() if isinstance(piece, str) else piece)
        text, num_used = codecs.utf_8_decode(raw, "replace", False)
        self._pending = raw[num_used:]
        self._is_plain = not self._pending and not self._at_start
        return text


class WindowDetokenizer:
    """A `Detokenizer` for any decoder: decodes the last few tokens again and returns what is new.

    A few tokens before the new ones stay in the window, so that the decoder knows they are not the first.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], skipped: Container[int] = ()) -> None:
        self._decode = decode
        self._skipped = skipped
        self._window: list[int] = []
        self._num_known = 0
        self._known = ""

    def append(self, token_id: int) -> str:
        """Return the text that the next token makes certain, possibly none."""
        if token_id in self._skipped:
            return ""
        self._window.append(token_id)
        text = self._decode(self._window)
        is_unfinished = text.endswith(_REPLACEMENT) and len(self._window) - self._num_known < MAX_WINDOW
        if is_unfinished or len(text) <= len(self._known):
            return ""
        return self._advance(text)

    def flush(self) -> str:
        """Return what is left when no more tokens come: U+FFFD for an unfinished character."""
        return self._advance(self._decode(self._window))

    def _advance(self, text: str) -> str:
        new = text[len(self._known) :]
        del self._window[: self._num_known]
        self._num_known = len(self._window)
        self._known = self._decode(self._window)
        return new
