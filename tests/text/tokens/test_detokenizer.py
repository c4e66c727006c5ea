"""Detokenizing token by token, compared with decoding all tokens at once."""

import codecs

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.text.tokens.detokenizer import MAX_WINDOW, WindowDetokenizer, complete_rest
from app.text.tokens.tokenizer import Tokenizer
from tests.text.toys import KINDS, toy

TEXTS = st.text(max_size=30) | st.sampled_from(
    ["👩‍👩‍👧‍👦 family", "e\u0301\u0302 marks", "  two spaces", " one", "猫\U0010ffff"]
)
EXACT = ("byte_level", "words", "metaspace")


def stream(tokenizer: Tokenizer, token_ids: list[int]) -> list[str]:
    """The text that is released after each token, and at the end."""
    detokenizer = tokenizer.new_detokenizer()
    return [*map(detokenizer.append, token_ids), detokenizer.flush()]


def ids_of(kind: str) -> st.SearchStrategy[list[int]]:
    """Any ids of a kind's vocabulary, and some outside it."""
    return st.lists(st.integers(0, toy(kind)[0].vocab_size + 3), max_size=24)


@pytest.mark.parametrize("kind", EXACT)
@given(data=st.data())
def test_streaming_any_ids_gives_their_decoding(kind, data):
    tokenizer, backend = toy(kind)
    token_ids = data.draw(ids_of(kind))
    assert "".join(stream(tokenizer, token_ids)) == backend.decode(token_ids)


@pytest.mark.parametrize("kind", KINDS)
@given(text=TEXTS)
def test_streaming_a_text_gives_its_decoding(kind, text):
    tokenizer, backend = toy(kind)
    token_ids = tokenizer.encode(text)
    assert "".join(stream(tokenizer, token_ids)) == backend.decode(token_ids) == tokenizer.decode(token_ids)


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_released_text_is_valid_utf8(kind, data):
    for text in stream(toy(kind)[0], data.draw(ids_of(kind))):
        text.encode()


@given(st.text(min_size=1, max_size=12))
def test_a_character_is_released_with_its_last_byte(text):
    """With one token per byte: no part of a character is released before its last byte."""
    tokenizer, _ = toy("byte_level")
    ids = {tokenizer.token_bytes(token_id): token_id for token_id in range(tokenizer.vocab_size)}
    released = stream(tokenizer, [ids[bytes([byte])] for byte in text.encode()])
    decoder = codecs.getincrementaldecoder("utf-8")()
    assert released == [*(decoder.decode(bytes([byte])) for byte in text.encode()), ""]


@given(st.lists(st.integers(0, 255), max_size=16))
@example([0xE2, 0x82])
@example([0xF0, 0x9F, 0x41])
def test_incomplete_characters_are_not_replaced_before_the_end(raw):
    tokenizer, backend = toy("sentencepiece")
    released = stream(tokenizer, [backend.token_to_id(f"<0x{byte:02X}>") for byte in raw])
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    expected = [decoder.decode(bytes([byte])) for byte in raw] + [decoder.decode(b"", final=True)]
    assert "".join(released) == "".join(expected).removeprefix(" ")
    assert released[-1] == expected[-1]


@pytest.mark.parametrize("kind", KINDS)
@given(text=TEXTS, data=st.data())
def test_a_text_that_is_cut_anywhere_goes_on_with_a_whole_character(kind, text, data):
    tokenizer, _ = toy(kind)
    token_ids = tokenizer.encode(text)
    cut = data.draw(st.integers(0, len(token_ids)))
    beginning, rest = tokenizer.new_detokenizer(), tokenizer.new_detokenizer(before=token_ids[:cut])
    first = "".join(map(beginning.append, token_ids[:cut])) + complete_rest(beginning)
    second = "".join(map(rest.append, token_ids[cut:])) + complete_rest(rest)
    assert "\ufffd" in text or "\ufffd" not in first + second
    assert (first + second).replace(" ", "") == tokenizer.decode(token_ids).replace(" ", "")  # rules of the start


def test_special_tokens_do_not_split_a_character():
    tokenizer, backend = toy("byte_level")
    token_ids = [backend.token_to_id("Ã"), tokenizer.special_tokens["<s>"], backend.token_to_id("©")]
    assert stream(tokenizer, token_ids) == ["", "", "é", ""]


@pytest.mark.parametrize("kind", ["sentencepiece", "metaspace"])
def test_only_the_first_space_of_a_text_is_dropped(kind):
    tokenizer, backend = toy(kind)
    three_spaces, the = backend.token_to_id("▁▁▁"), tokenizer.encode("dog")
    for token_ids in ([three_spaces, *the], [*the, three_spaces, *the], [tokenizer.special_tokens["<s>"], *the]):
        assert "".join(stream(tokenizer, token_ids)) == backend.decode(token_ids)


@pytest.mark.parametrize("kind", KINDS)
def test_the_window_detokenizer_gives_the_same_text(kind):
    tokenizer, backend = toy(kind)
    token_ids = tokenizer.encode("the dog sleeps. é 🙂 the <s> dog")
    detokenizer = WindowDetokenizer(backend.decode, tokenizer.special_tokens.values())
    released = [*map(detokenizer.append, token_ids), detokenizer.flush()]
    assert "".join(released) == backend.decode(token_ids)


def test_the_window_does_not_grow_with_bytes_that_never_form_a_character():
    _, backend = toy("byte_level")
    lengths = []

    def decode(token_ids):
        lengths.append(len(token_ids))
        return backend.decode(token_ids)

    detokenizer = WindowDetokenizer(decode)
    lone = backend.token_to_id("Ģ")
    released = "".join([detokenizer.append(lone) for _ in range(10 * MAX_WINDOW)]) + detokenizer.flush()
    assert released == "\ufffd" * (10 * MAX_WINDOW)
    assert max(lengths) <= 2 * MAX_WINDOW


@pytest.mark.parametrize("kind", ["byte_level", "sentencepiece", "word_pieces"])
def test_shown_special_tokens_have_their_text_behind_a_noncharacter(kind):
    tokenizer, _ = toy(kind)
    shown, hidden = tokenizer.special_tokens["<|user|>"], tokenizer.special_tokens["<|end|>"]
    words = tokenizer.encode("the dog", add_special_tokens=False)
    ids = [*words, shown, hidden, *words, shown]
    detokenizer = tokenizer.new_detokenizer(frozenset({shown}))
    text = "".join(map(detokenizer.append, ids)) + detokenizer.flush()
    before, between, after = text.split("\ufdd0<|user|>")
    assert (before.strip(), between.strip(), after) == ("the dog", "the dog", "")


@pytest.mark.parametrize("kind", ["byte_level", "sentencepiece"])
def test_a_mark_within_a_character_leaves_it_out(kind):
    tokenizer, _ = toy(kind)
    emoji = tokenizer.encode("🙂", add_special_tokens=False)
    shown = tokenizer.special_tokens["<|user|>"]
    detokenizer = tokenizer.new_detokenizer(frozenset({shown}))
    text = "".join(map(detokenizer.append, [*emoji, *emoji[:-1], shown, *emoji]))
    assert text.replace(" ", "") == "🙂\ufdd0<|user|>🙂"


def test_the_noncharacter_of_a_model_is_replaced():
    tokenizer, _ = toy("byte_level")
    ids = tokenizer.encode("a\ufdd0b", add_special_tokens=False)
    detokenizer = tokenizer.new_detokenizer(frozenset({0}))
    assert "".join(map(detokenizer.append, ids)) + detokenizer.flush() == "a\ufffdb"
    plain = tokenizer.new_detokenizer()
    assert "".join(map(plain.append, ids)) + plain.flush() == "a\ufdd0b"
