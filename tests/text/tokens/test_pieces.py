"""The decoders that are supported, and the pieces that their tokens add to a text."""

import json

import pytest
from tokenizers import Regex, decoders

from app.text.tokens.pieces import Pieces, read_rules

SPACES = decoders.Replace("▁", " ")


def rules_of(decoder):
    return read_rules(json.loads(decoder.__getstate__()))


@pytest.mark.parametrize("decoder", [
    decoders.ByteLevel(),
    decoders.Sequence([decoders.ByteLevel()]),
    decoders.Metaspace(),
    decoders.Metaspace(prepend_scheme="never"),
    decoders.Sequence([SPACES, decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 2, 0)]),
    decoders.Sequence([SPACES, decoders.ByteFallback(), decoders.Fuse()]),
])  # fmt: skip
def test_supported_decoders_give_the_text_of_the_tokenizers_library(decoder):
    rules = rules_of(decoder)
    for spellings in (["▁▁a", "▁b", "é", "Ġ", "<0x41>"], ["▁", "▁", "▁c"], ["<unused é>"]):
        pieces = Pieces(rules, dict(enumerate(spellings)).get)
        parts = [pieces.first(0), *(pieces[i] for i in range(1, len(spellings)))]
        text = b"".join(part.encode() if isinstance(part, str) else part for part in parts).decode("utf-8", "replace")
        num = rules.num_leading_spaces
        assert text[:num].lstrip(" ") + text[num:] == decoder.decode(spellings)


def test_bytes_of_all_tokens_are_those_of_the_pieces():
    spellings = ["Ġ", "é", "Ã©", "a b", "Ā", "\x00", "Ġa b", "Ń", "ń", "\ufffd", "skipped"]
    pieces = Pieces(rules_of(decoders.ByteLevel()), dict(enumerate(spellings)).get, [10])
    found = pieces.all_bytes(12)
    assert found == [b" ", b"\xe9", b"\xc3\xa9", b"a b", b"\0", b"\0", "Ġa b".encode(), b"\xad", "ń".encode(),
                     "\ufffd".encode(), b"", b""]  # fmt: skip
    assert 0 not in pieces, "they are not kept"
    assert [piece.encode() if isinstance(piece := pieces[i], str) else piece for i in range(12)] == found


@pytest.mark.parametrize("decoder", [
    decoders.WordPiece(),
    decoders.CTC(),
    decoders.BPEDecoder(),
    decoders.Sequence([decoders.Fuse(), decoders.ByteFallback()]),
    decoders.Sequence([decoders.Replace(Regex("a+"), " ")]),
    decoders.Sequence([decoders.Fuse(), decoders.Strip(" ", 1, 1)]),
    decoders.Sequence([decoders.Fuse(), decoders.Strip("_", 1, 0)]),
    decoders.Sequence([decoders.Strip(" ", 1, 0)]),
])  # fmt: skip
def test_other_decoders_have_no_rules(decoder):
    assert rules_of(decoder) is None


def test_a_piece_is_bytes_only_if_it_is_not_valid_text():
    pieces = Pieces(rules_of(decoders.ByteLevel()), {0: "ab", 1: "Ã", 2: "Ã©", 3: "x"}.get, skipped=[3])
    assert [pieces[i] for i in range(5)] == ["ab", b"\xc3", "é", "", ""]
    assert pieces.first(3) is None


def test_ascii_tokens_of_byte_level_vocabularies_are_their_own_bytes():
    """Those with characters outside of the byte alphabet, such as spaces, are added tokens: their content is text."""
    tokens = [*map(chr, range(128)), "ab", "<a b>", "\tĠ", "Ġab", "<Ġ é>"]
    found = Pieces(rules_of(decoders.ByteLevel()), dict(enumerate(tokens)).get).all_bytes(len(tokens))
    assert found == [*(bytes([code]) for code in range(128)), b"ab", b"<a b>", "\tĠ".encode(), b" ab", "<Ġ é>".encode()]
