"""Answers on files, and on terminals without colours."""

import io

import pytest

from app.commands.dialog.markdown_screen import MarkdownScreen
from app.commands.dialog.screens import RawScreen, WrappedScreen, new_screen, plain_screen, print_error


class FakeTerminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


def wrapped(text: str, width: int, size: int) -> str:
    """A text as it is shown, in pieces of a size."""
    stream = io.StringIO()
    screen = WrappedScreen(stream, width)
    for at in range(0, len(text), size):
        screen.write(text[at : at + size])
    screen.end()
    return stream.getvalue()


def test_a_file_gets_the_answers_own_characters():
    stream = io.StringIO()
    screen = RawScreen(stream)
    screen.write("a\x1b[2J")
    screen.end()
    assert stream.getvalue() == "a\x1b[2J\n"


@pytest.mark.parametrize("size", [1, 2, 100])
@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("one two three", ["one two", "three"]),
        ("one  two\nthree", ["one  two", "three"]),
        ("12345678 x", ["12345678", "x"]),
        ("12345678\nx", ["12345678", "x"]),
        ("    code here", ["    code", "here"]),
        ("漢字漢字 漢", ["漢字漢字", "漢"]),
        ("longer-than-that x", ["longer-than-that", "x"]),
        ("a\n\nb", ["a", "", "b"]),
        ("a\x1b[2J", ["a\\x1b[2J"]),
    ],
)
def test_words_wrap_at_the_edge(text, lines, size):
    assert wrapped(text, 8, size).splitlines() == lines


@pytest.mark.parametrize("size", [1, 2, 100])
def test_lines_of_fenced_code_run_on(size):
    text = "one two three\n```sh\ncurl -N -d http\n    -H x y z\n```\none two three"
    code = ["```sh", "curl -N -d http", "    -H x y z", "```"]
    assert wrapped(text, 8, size).splitlines() == ["one two", "three", *code, "one two", "three"]


def test_the_line_of_a_failure_wraps_between_words(monkeypatch):
    stream = FakeTerminal()
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setenv("COLUMNS", "20")
    print_error("quire: error: there is no such model")
    assert stream.getvalue() == "quire: error: there\nis no such model\n"


def test_each_piece_is_shown_once_its_word_is_complete():
    stream = io.StringIO()
    screen = WrappedScreen(stream, 80)
    screen.write("one tw")
    assert stream.getvalue() == "one"
    screen.write("o three ")
    assert stream.getvalue() == "one two three"


@pytest.mark.parametrize(
    ("environ", "kind"),
    [
        ({"TERM": "xterm"}, MarkdownScreen),
        ({"TERM": "xterm", "NO_COLOR": "1"}, WrappedScreen),
        ({"TERM": "dumb"}, WrappedScreen),
        ({}, WrappedScreen),
    ],
)
def test_the_environment_decides_what_a_terminal_shows(environ, kind):
    assert isinstance(new_screen(FakeTerminal(), environ)(), kind)
    assert isinstance(new_screen(io.StringIO(), environ)(), RawScreen)
    assert isinstance(plain_screen(FakeTerminal()), WrappedScreen)
