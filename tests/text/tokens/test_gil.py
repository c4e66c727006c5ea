"""Work on background threads releases the interpreter lock, so that the event loop can run.

The tests count and do not time: beside native code that releases the lock, another thread gets thousands of turns, and
beside code that does not two or three, on any machine.
"""

import threading
import time
from collections.abc import Callable

import pytest

from app.checkpoint.text_files import FolderText
from app.contract.errors import ContextLengthExceeded
from app.text.template.chat_template import ChatTemplate
from app.text.tokens.tokenizer import COUNT_CHARS, Tokenizer
from tests.checkpoints import real_size

CONTEXT = 262_144
MARK = "<|user|>"
ENOUGH = 20


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.load(FolderText(real_size("long")))


@pytest.fixture(scope="module")
def template(tokenizer):
    return ChatTemplate.load(FolderText(real_size("long")), tokenizer)


def turns_beside(call: Callable[[], object]) -> int:
    """The number of turns of another thread while `call` runs; a few if `call` keeps the lock."""
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


def test_encoding_a_long_text_releases_the_lock(tokenizer):
    text = "The quick brown fox, für 日本. " * 30_000
    assert turns_beside(lambda: tokenizer.encode(text)) > ENOUGH


def test_rendering_a_long_conversation_releases_the_lock(template):
    messages = [{"role": "user", "content": "The quick brown fox, für 日本. " * 30_000}]
    assert turns_beside(lambda: template.render(messages)) > ENOUGH


def test_a_text_that_is_too_long_is_rejected_without_encoding_all_of_it(tokenizer, monkeypatch):
    num_chars = 0
    encode = Tokenizer._encode

    def counted(self, text, **options):
        nonlocal num_chars
        num_chars += len(text)
        return encode(self, text, **options)

    monkeypatch.setattr(Tokenizer, "_encode", counted)
    text = "a b c d " * 500_000

    def reject() -> None:
        with pytest.raises(ContextLengthExceeded):
            tokenizer.encode(text, max_tokens=CONTEXT)

    assert turns_beside(reject) > ENOUGH
    assert num_chars < 3 * CONTEXT  # of four million; two make a token


def test_a_message_of_special_tokens_is_rejected_when_the_context_is_full(template, tokenizer, monkeypatch):
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
    assert num_literal == 0  # with more special tokens than allowed, nothing is rendered
    with pytest.raises(ContextLengthExceeded):
        template.render([{"role": "user", "content": (MARK + "a b c ") * 1500}], max_tokens=2000)
    assert num_literal < 1000


@pytest.mark.parametrize("length", [1000, COUNT_CHARS * 3])
def test_a_text_within_the_context_is_encoded_completely(tokenizer, length):
    text = ("The quick brown fox, für 日本. " * length)[:length]
    assert tokenizer.encode(text, max_tokens=length * 3 // 4) == tokenizer._backend.encode(text).ids
