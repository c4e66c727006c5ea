"""Pieces: the text or bytes that each token adds to a text, computed once per token.

A piece is a `str` if the token's bytes are complete characters, and `bytes` if they begin or end inside a character.
The text is the UTF-8 decoding of all pieces in order, with two exceptions at the start: some decoders drop leading
spaces of the text, and some decode the first token differently.

Known decoders, by their name in tokenizer.json: ByteLevel (each character of a token stands for one byte); sequences
of Replace, ByteFallback (`<0xNN>` is one byte), Fuse and Strip, as in sentencepiece models; Metaspace; and no decoder
(tokens joined by spaces). Invalid UTF-8 becomes U+FFFD as Unicode recommends. `tokenizers` instead writes one U+FFFD
per byte of an invalid run of `<0xNN>`; a stream could only do so by holding back valid characters.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

Piece = str | bytes
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_STEPS = re.compile(r"(Replace )*(ByteFallback )?(Fuse (Strip )?)?")  # of decoders in sentencepiece models


@dataclass(frozen=True, slots=True)
class DecoderRules:
    """How the vocabulary's tokens become bytes: any token, the first one of a text if it differs, spaces to drop."""

    to_bytes: Callable[[str], bytes]
    first_to_bytes: Callable[[str], bytes] | None = None
    num_leading_spaces: int = 0


class Pieces(dict[int, Piece]):
    """Token id -> piece, computed on first use; unknown and skipped ids add no text. Any thread."""

    def __init__(self, rules: DecoderRules, spelling: Callable[[int], str | None], skipped: Iterable[int] = ()) -> None:
        super().__init__(dict.fromkeys(skipped, ""))
        self._rules = rules
        self._spelling = spelling
        self._skipped = frozenset(skipped)
        self.num_leading_spaces = rules.num_leading_spaces
        self.has_start_rules = rules.num_leading_spaces > 0 or rules.first_to_bytes is not None

    def __missing__(self, token_id: int) -> Piece:
        spelling = self._spelling(token_id)
        piece = "" if spelling is None else _piece(self._rules.to_bytes(spelling))
        self[token_id] = piece
        return piece

    def all_bytes(self, count: int) -> list[bytes]:
        """Return the bytes of the ids below `count`, and keep none; empty for unknown and skipped ids."""
        to_bytes = self._rules.to_bytes
        found = [b"" if spelling is None else to_bytes(spelling) for spelling in map(self._spelling, range(count))]
        for token_id in self._skipped:
            if token_id < count:
                found[token_id] = b""
        return found

    def first(self, token_id: int) -> Piece | None:
        """Return the piece of the first token of a text, or None if the id adds no text."""
        spelling = None if token_id in self._skipped else self._spelling(token_id)
        to_bytes = self._rules.first_to_bytes or self._rules.to_bytes
        return None if spelling is None else _piece(to_bytes(spelling))


def read_rules(decoder: Mapping[str, Any] | None) -> DecoderRules | None:
    """Return the rules of a tokenizer.json decoder, or None for an unknown decoder."""
    if decoder is None:
        return DecoderRules(lambda token: f" {token}".encode(), str.encode)
    if decoder["type"] == "Metaspace":
        return _metaspace(decoder)
    return _sequence(decoder["decoders"] if decoder["type"] == "Sequence" else [decoder])


def _piece(raw: bytes) -> Piece:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


def _byte_level() -> Callable[[str], bytes]:
    """Return the inverse of the byte alphabet: printable Latin-1 bytes stay, the others are U+0100 upwards."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    # By code points, each byte as the character of Latin-1; what is no character of the alphabet as one of no charset.
    alphabet = {256 + i: chr(byte) for i, byte in enumerate(others)} | dict.fromkeys(others, "\ufffd")

    def to_bytes(token: str) -> bytes:
        if token.isascii():  # printable characters stay, and with others it is an added token
            return token.encode()
        try:
            return token.translate(alphabet).encode("latin-1")
        except UnicodeEncodeError:  # an added token, whose content is plain text
            return token.encode()

    return to_bytes


def _metaspace(decoder: Mapping[str, Any]) -> DecoderRules:
    mark = decoder["replacement"]
    to_bytes = _replacing([(mark, " ")])
    if decoder.get("prepend_scheme", "always") == "never":
        return DecoderRules(to_bytes)
    return DecoderRules(to_bytes, _replacing([(mark, "")]))


def _replacing(pairs: Iterable[tuple[str, str]], *, has_byte_tokens: bool = False) -> Callable[[str], bytes]:
    pairs = tuple(pairs)

    def to_bytes(token: str) -> bytes:
        for old, new in pairs:
            token = token.replace(old, new)
        match = _BYTE_TOKEN.fullmatch(token) if has_byte_tokens else None
        return bytes.fromhex(match[1]) if match else token.encode()

    return to_bytes


def _sequence(decoders: list[Mapping[str, Any]]) -> DecoderRules | None:
    """Read [ByteLevel], or Replace* ByteFallback? Fuse? Strip?: the order in sentencepiece models."""
    kinds = [decoder["type"] for decoder in decoders]
    if kinds == ["ByteLevel"]:
        return DecoderRules(_byte_level())
    if not _STEPS.fullmatch("".join(f"{kind} " for kind in kinds)):
        return None
    patterns = [(decoder["pattern"], decoder["content"]) for decoder in decoders if decoder["type"] == "Replace"]
    if not all("String" in pattern for pattern, _ in patterns):
        return None
    strip: Mapping[str, Any] = decoders[-1] if kinds[-1:] == ["Strip"] else {"content": " ", "start": 0, "stop": 0}
    if strip["content"] != " " or strip["stop"]:
        return None
    pairs = [(pattern["String"], content) for pattern, content in patterns]
    to_bytes = _replacing(pairs, has_byte_tokens="ByteFallback" in kinds)
    return DecoderRules(to_bytes, num_leading_spaces=strip["start"])
