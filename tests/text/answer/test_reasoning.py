"""Reasoning at the beginning of an answer."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.text.answer.reasoning import STYLES
from app.text.reading.answer_events import Reasoning, Text
from app.text.reading.reader import MAX_BLANKS
from tests.cases import examples
from tests.text.answer.answers import cut, parse

THINK = STYLES["think"]


def read(*pieces: str, is_inside: bool = False, style: str = "think", special: frozenset[str] = frozenset()) -> list:
    return parse(STYLES[style].resolved(special).machine(is_inside=is_inside), pieces)


@pytest.mark.parametrize("style", STYLES)
def test_a_block_is_separated_from_the_answer(style):
    begin, end = STYLES[style].marks
    expected = [Reasoning("One.\n\nTwo."), Text("The answer.\n")]
    text = f"\n{begin}\nOne.\n\nTwo.\n{end}\n\nThe answer.\n"
    assert read(text, style=style) == read(*text, style=style) == expected
    assert read(text.partition(begin)[2], style=style, is_inside=True) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("Hi", [Text("Hi")]),
        ("  Hi \n", [Text("  Hi \n")]),
        ("<thin", [Text("<thin")]),
        ("Hi <think>x</think>", [Text("Hi <think>x</think>")]),
        ("<think>x", [Reasoning("x")]),
        ("<think>x </thi", [Reasoning("x </thi")]),
        ("<think></think>x", [Text("x")]),
        ("<think>\n\n</think>\n\nx", [Text("x")]),
        ("<think>x</think>", [Reasoning("x")]),
        ("<think>a<think>b</think>c</think>", [Reasoning("a<think>b"), Text("c</think>")]),
        ("<think>x</think>  y", [Reasoning("x"), Text("  y")]),
        (f"<think>x{' ' * (MAX_BLANKS + 1)}</think>", [Reasoning(f"x{' ' * (MAX_BLANKS + 1)}")]),
        ('<think><tool_call>{"name"', [Reasoning('<tool_call>{"name"')]),
    ],
)
def test_unusual_blocks(text, expected):
    assert read(text) == read(*text) == expected


def test_a_mark_that_is_a_special_token_is_not_found_in_text():
    special = frozenset(STYLES["mistral"].marks)
    text = "[THINK]a[/THINK]b"
    assert read(text, style="mistral", special=special) == [Text(text)]
    expected = [Reasoning("a[/THINK]"), Text("b")]
    assert read("\ufdd0[THINK]a[/THINK]\ufdd0[/THINK]b", style="mistral", special=special) == expected


@pytest.mark.parametrize(
    ("prompt", "is_inside"),
    [
        ("<|im_start|>assistant\n<think>\n", True),
        ("<｜Assistant｜><think>", True),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", False),
        ("<|im_start|>assistant\n", False),
        ("", False),
    ],
)
def test_a_prompt_may_begin_the_block(prompt, is_inside):
    assert THINK.is_inside(prompt) is is_inside


BLOCKS = {
    "words": st.lists(st.sampled_from(["<think>", "</think>", "<", "think>", "a", " ", "\n", " " * 60]), max_size=10),
    "places": st.lists(st.integers(0, 999), max_size=8),
    "is_inside": st.booleans(),
}


@settings(max_examples=examples(200))
@given(**BLOCKS)
def test_every_cut_gives_the_same_events(words, places, is_inside):
    text = "".join(words)
    events = read(text, is_inside=is_inside)
    assert read(*cut(text, places), is_inside=is_inside) == read(*text, is_inside=is_inside) == events
