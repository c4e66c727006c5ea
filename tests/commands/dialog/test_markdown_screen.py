"""Markdown on a terminal: what a user sees, and what is sent for it."""

import io
import os
import re

import pytest

from app.commands.dialog import markdown_screen
from app.commands.dialog.markdown_screen import MarkdownScreen
from tests.commands.dialog.emulator import Emulator

TEXT = """# Title

Some **bold** text with `code` and a [link](http://example.org/x) that is so long that it wraps at the edge. <b>html</b>
Second line.

- one
- two with a rather long text that has to be wrapped
  - nested

1. First
   ```python
   def f(x):
       return x
   ```

| a | b |
|---|---|
| 1 | 2 |

> A quote"""
SHOWN = """Title

Some bold text with code and a link
(http://example.org/x) that is so long
that it wraps at the edge. <b>html</b>
Second line.

 • one
 • two with a rather long text that has
   to be wrapped
    • nested

 1 First

   def f(x):
       return x

 a  b
 ────
 1  2

▌ A quote"""
SIZE = os.terminal_size((40, 10))


@pytest.fixture(autouse=True)
def a_terminal(monkeypatch):
    """A terminal of 40 columns and 10 lines."""
    monkeypatch.setattr(markdown_screen.shutil, "get_terminal_size", lambda: SIZE)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)


def written(text: str, size: int) -> list[str]:
    """What is sent to the terminal for each piece of a text, and at its end."""
    sent, stream = [], io.StringIO()
    screen = MarkdownScreen(stream)
    for at in range(0, len(text), size):
        screen.write(text[at : at + size])
        sent.append(stream.getvalue())
        stream.seek(0), stream.truncate()
    screen.end()
    return [*sent, stream.getvalue()]


def shown(text: str, size: int = 3) -> str:
    """What a user sees at the end."""
    emulator = Emulator(SIZE.columns, SIZE.lines)
    emulator.feed("".join(written(text, size)))
    return emulator.shown


@pytest.mark.parametrize("size", [1, 3, 10, 1000])
def test_a_text_looks_the_same_for_any_pieces(size):
    assert shown(TEXT, size) == SHOWN


@pytest.mark.parametrize("size", [1, 1000])
def test_text_without_markdown_stays_as_it_is(size):
    for text in ("a", "a\nb", "2 * 3 * 4", "a_b_c", "<think>so</think>", "x < y && y > z"):
        assert shown(text, size) == text


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("See <http://localhost:8000>.", "See http://localhost:8000."),
        ("See [http://x.org/](http://x.org/) now.", "See http://x.org/ now."),
        ("Ask <me@x.org>.", "Ask me@x.org."),
        ("[x.org](http://x.org/a)", "x.org (http://x.org/a)"),
        ("[**bold**](http://x.org/)", "bold (http://x.org/)"),
    ],
)
def test_the_address_of_a_link_is_shown_once(text, seen):
    assert shown(text) == seen


def test_code_is_coloured_with_the_lines_before_it():
    code = '```python\n"""doc\nif x\n"""\nif x:\n    pass\n```'
    lines = "".join(written(code, 1000)).split("\n")
    assert lines[3].replace("\x1b[K", "") != "if x:" and lines[1] != lines[3], "a word in a string has another colour"


COMMAND = (
    "curl -N http://127.0.0.1:8000/v1/chat/completions -H 'content-type: application/json'   "
    '-d \'{"messages": [{"role": "user", "content": "日本語 What is Quire?"}], "stream": true}\''
)


@pytest.mark.parametrize("columns", [4, 20, 40, 85, 86, 200])
@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize("language", ["sh", ""])
def test_a_line_of_code_is_copied_as_one_line_at_every_width(columns, size, language, monkeypatch):
    monkeypatch.setattr(markdown_screen.shutil, "get_terminal_size", lambda: os.terminal_size((columns, 99)))
    emulator = Emulator(columns, 99)
    text = f"Do:\n\n```{language}\nls\n{COMMAND}\nls\n```\n\nSo."
    emulator.feed("".join(written(text, size)))
    assert emulator.copied.strip().splitlines() == ["Do:", "", "ls", COMMAND, "ls", "", "So."]


@pytest.mark.parametrize("size", [1, 1000])
@pytest.mark.parametrize("length", [38, 39, 40, 41, 80])
def test_a_line_of_code_that_fills_the_row_loses_nothing(length, size):
    assert shown(f"```\n{'x' * length}\ny\n```\nz", size).replace("\n", "") == "x" * length + "yz"


def test_prose_never_runs_on():
    emulator = Emulator(SIZE.columns, SIZE.lines)
    emulator.feed("".join(written(TEXT, 3)))
    assert not emulator.run_on


def test_only_what_changes_is_sent():
    """A word at the end of a paragraph of many lines costs one line."""
    stream = io.StringIO()
    screen = MarkdownScreen(stream)
    screen.write("some words " * 20)
    before = len(stream.getvalue())
    screen.write("end")
    assert 0 < len(stream.getvalue()) - before < 3 * SIZE.columns


def test_closed_blocks_are_never_drawn_again():
    pieces = written("first\n\nsecond\n\nthird", 1)
    assert sum("first" in piece for piece in pieces) == 1


def test_an_open_block_taller_than_the_terminal_is_whole_in_the_end():
    table = "| a | b |\n|---|---|\n" + "".join(f"| {number} | x |\n" for number in range(30))
    assert [line.split()[0] for line in shown(table + "\nend", 5).splitlines()[2:32]] == [*map(str, range(30))]


HOSTILE = [
    "\x1b[2J\x1b]0;title\x07", "\x1b]52;c;aGk=\x07", "\x9b2J", "&#27;[2J &#x9b;31m &#13; &#7; &#8;",
    "[x](http://a/\x1b[2J)", "```\x1b[31m\n\x1b[2J\n```", "| \x1b[A |\n|---|\n| \x1bc |", "![i](\x1b]8;;x\x07)",
    "[l](http://&#27;[2J)", "`&#27;`", "<b \x1b[2J>",
]  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE)
def test_no_control_sequence_of_an_answer_reaches_the_terminal(text):
    """The emulator fails at any that Quire does not write itself."""
    for size in (1, 1000):
        seen = shown(f"before\n\n{text}\n\nafter", size)
        assert "before" in seen and "after" in seen


@pytest.mark.parametrize(
    "text", ["> " * 500 + "x", "- " * 300 + "x", "*" * 3000, "[" * 2000, "| " * 500, "[x]: http://y"]
)
def test_odd_markdown_is_shown_somehow(text):
    assert shown(text, 400)


def test_sequences_are_only_colours_and_moves():
    kinds = set(re.findall(r"\x1b\[[0-9;]*([A-Za-z])", "".join(written(TEXT, 2))))
    assert kinds <= {"m", "A", "K", "J"}
