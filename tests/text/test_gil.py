"""What an executor is given lets other threads run: none of it keeps the interpreter to itself for long.

Counted, not timed: another thread comes to its turn thousands of times beside native code that lets it, and twice or
three times beside native code that does not, however fast or busy the machine is.
"""

import threading
import time
from collections.abc import Callable

import pytest

from app.contract.errors import ContextLengthExceeded
from app.text.chat_template import ChatTemplate
from app.text.tokenizer import COUNT_CHARS, Tokenizer
from tests.checkpoints import real_size

CONTEXT = 262_144
MARK = "<|user|>"
ENOUGH = 50


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.load(real_size("long"))


@pytest.fixture(scope="module")
def template(tokenizer):
    return ChatTemplate.load(real_size("long"), tokenizer)


def turns_beside(call: Callable[[], object]) -> int:
    """How often another thread comes to its turn while `call` runs: a few times if it keeps the interpreter."""
    is_over, is_counting = threading.Event(), threading.Event()
    num_turns = 0

    def count() -> None:
        nonlocal num_turns
        while not is_over.is_set():
            num_turns += 1
            is_counting.set()
            time.sleep(0)

    counter = threading.Thread(target=count)
    counter.start()
    is_counting.wait()
    before = num_turns
    try:
        call()
    finally:
        after = num_turns
        is_over.set()
        counter.join()
    return after - before


def test_a_long_text_is_encoded_beside_others(tokenizer):
    text = "The quick brown fox, für 日本. " * 30_000
    assert turns_beside(lambda: tokenizer.encode(text)) > ENOUGH


def test_a_long_conversation_is_rendered_and_encoded_beside_others(template):
    talk = [{"role": "user", "content": "The quick brown fox, für 日本. " * 30_000}]
    assert turns_beside(lambda: template.render(talk)) > ENOUGH


def test_a_text_that_is_too_long_is_counted_beside_others_and_not_to_its_end(tokenizer, monkeypatch):
    num_chars = 0
    encode = Tokenizer._encode

    def counted(self, text, **options):
        nonlocal num_chars
        num_chars += len(text)
        return encode(self, text, **options)

    monkeypatch.setattr(Tokenizer, "_encode", counted)
    text = "a b c d " * 500_000

    def refuse() -> None:
        with pytest.raises(ContextLengthExceeded):
            tokenizer.encode(text, max_tokens=CONTEXT)

    assert turns_beside(refuse) > ENOUGH
    assert num_chars < 3 * CONTEXT  # of four million; two make a token


def test_special_tokens_without_end_are_refused_when_the_context_is_full(template, tokenizer, monkeypatch):
    num_literal = 0
    encode = Tokenizer._encode_literal

    def counted(self, text):
        nonlocal num_literal
        num_literal += 1
        return encode(self, text)

    monkeypatch.setattr(Tokenizer, "_encode_literal", counted)
    spelled = [{"role": "user", "content": MARK * 3000}]
    with pytest.raises(ContextLengthExceeded):
        template.render(spelled, max_tokens=2000)
    assert num_literal == 0  # more marks than tokens: nothing is even rendered
    with pytest.raises(ContextLengthExceeded):
        template.render([{"role": "user", "content": (MARK + "a b c ") * 1500}], max_tokens=2000)
    assert num_literal < 1000


@pytest.mark.parametrize("length", [1000, COUNT_CHARS * 3])
def test_a_text_within_the_context_is_encoded_as_a_whole(tokenizer, length):
    text = ("The quick brown fox, für 日本. " * length)[:length]
    assert tokenizer.encode(text, max_tokens=length * 3 // 4) == tokenizer._backend.encode(text).ids
