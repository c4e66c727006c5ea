"""What is typed becomes texts."""

import io

import pytest

from app.commands.dialog.questions import piped_questions, typed_questions


class FakeHistory:
    """Lines and keys (exceptions) that are typed, and what `line` has when Ctrl-C is pressed."""

    def __init__(self, lines: tuple[str | type[BaseException], ...], line: str) -> None:
        self.left, self.line, self.is_saved = list(lines), line, False

    def read(self, prompt: str) -> str:
        """See History.read."""
        if not self.left:
            raise EOFError
        if isinstance(given := self.left.pop(0), str):
            return given
        raise given

    def typed(self) -> str:
        return self.line

    def save(self) -> None:
        self.is_saved = True


@pytest.fixture
def type_lines():
    """A function that types lines and keys (exceptions), and returns the texts, the notes and the history."""

    def type_(*lines: str | type[BaseException], line: str = ""):
        notes, history = [], FakeHistory(lines, line)
        texts = list(typed_questions(history, notes.append))
        assert history.is_saved
        return texts, notes, history.left

    return type_


@pytest.mark.parametrize(
    ("lines", "texts"),
    [
        (["one", " two "], ["one", "two"]),
        (["one \\", "two\\", "three"], ["one \ntwo\nthree"]),
        (['"""one', "", 'two"""', "three"], ["one\n\ntwo", "three"]),
        (['"""', "one", '"""'], ["one"]),
        (['"""one"""'], ["one"]),
        (["pasted\nat once"], ["pasted\nat once"]),
        (["one\\"], ["one"]),
        (['"""one'], ["one"]),
    ],
)
def test_texts_of_several_lines(type_lines, monkeypatch, lines, texts):
    assert type_lines(*lines)[0] == texts
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(lines) + "\n"))
    if "pasted" not in lines[0]:
        assert list(piped_questions()) == texts


def test_a_second_interrupt_of_an_empty_line_ends(type_lines):
    texts, notes, left = type_lines("one", KeyboardInterrupt, KeyboardInterrupt, "never")
    assert (texts, len(notes), left) == (["one"], 1, ["never"])


def test_interrupts_with_a_question_between_them_do_not_end(type_lines):
    assert type_lines(KeyboardInterrupt, "one", KeyboardInterrupt, "two")[0] == ["one", "two"]


def test_an_interrupt_drops_what_was_typed(type_lines):
    texts, notes, _ = type_lines(KeyboardInterrupt, KeyboardInterrupt, KeyboardInterrupt, "two", line="typed")
    assert (texts, notes) == (["two"], [])


def test_an_interrupt_within_a_text_of_several_lines_drops_it(type_lines):
    assert type_lines('"""one', KeyboardInterrupt, "two", line="x")[0] == ["two"]


@pytest.mark.parametrize("begun", ['"""', "one\\"])
def test_interrupts_of_a_text_of_several_lines_at_its_empty_next_line_do_not_end(type_lines, begun):
    texts, notes, left = type_lines(KeyboardInterrupt, begun, KeyboardInterrupt, KeyboardInterrupt, "two")
    assert (texts, len(notes), left) == (["two"], 2, [])
