"""The tokens around reasoning: single ones or none, inside from the prompt on or not, not at all."""

from __future__ import annotations

import pytest
import tokenizers

from app.contract.grammar import ReasoningMarks
from app.text.answer.reasoning import STYLES
from app.text.answer.reasoning_start import ReasoningStart, reasoning_start
from app.text.tokens.tokenizer import Tokenizer
from tests.text import toys

STYLE = STYLES["think"]


def tokenizer(*marks: str) -> Tokenizer:
    """A tokenizer with some marks as single tokens; one of them is in every toy."""
    backend = toys.byte_level()
    backend.add_tokens([tokenizers.AddedToken(mark, special=False) for mark in marks])
    return Tokenizer(backend, {})


def start_of(prompt: str, text: Tokenizer) -> ReasoningStart:
    """The start of the reasoning after a prompt."""
    start = reasoning_start(STYLE, text.encode(prompt), text)
    assert start is not None
    return start


def test_marks_are_tokens_only_if_both_are():
    text = tokenizer("<think>", "</think>")
    assert start_of("hi", text).marks == ReasoningMarks(*map(text.token_id, STYLE.marks))
    assert start_of("hi", tokenizer("<think>")).marks is None


@pytest.mark.parametrize("marks", [("<think>", "</think>"), ()], ids=["tokens", "texts"])
@pytest.mark.parametrize(
    ("prompt", "is_inside"),
    [("hello", False), ("hello<think>", True), ("hello<think>\n", True), ("<think>hello", False)],
)
def test_an_answer_begins_inside_where_the_prompt_ends_in_the_opening_mark(marks, prompt: str, is_inside: bool):
    start = start_of(prompt, tokenizer(*marks))
    assert start.is_inside == is_inside
    assert (start.marks is not None) == bool(marks)
    assert start.marks is None or start.marks.is_inside == is_inside


@pytest.mark.parametrize(
    ("prompt", "expected"), [("hello", True), ("hello<think>", True), ("hello<think>\n\n</think>\n\n", False)]
)
def test_an_answer_after_an_empty_block_does_not_reason(prompt: str, expected: bool):
    text = tokenizer("<think>", "</think>")
    assert start_of(prompt, text).is_possible is expected
    assert reasoning_start(None, text.encode(prompt), text) is None


@pytest.mark.parametrize(
    ("continued", "is_inside", "is_possible"),
    [
        ("<think>\na long thought without an end", True, True),
        ("\n<think>abc", True, True),
        ("<think>", True, True),
        ("<think>abc</think>", False, False),
        ("<think>abc</think>\n\nSo", False, False),
        ("Hello", False, True),
        ("I write <think> here", False, True),
    ],
)
def test_a_message_that_is_continued_may_have_begun_its_reasoning(continued: str, is_inside: bool, is_possible: bool):
    text = tokenizer("<think>", "</think>")
    prompt = f"a question {continued}"
    start = reasoning_start(STYLE, text.encode(prompt), text, continued)
    assert (start.is_inside, start.is_possible, start.marks.is_inside) == (is_inside, is_possible, is_inside)
