"""One answer on a screen: its last word, its figures, and why it is not complete."""

import io

import pytest

from app.commands.answers.streamed_text import AnswerEnd, TextStream
from app.commands.dialog.screens import WrappedScreen
from app.commands.dialog.shown_answer import ShownAnswer
from app.contract.errors import EngineFailed
from app.contract.events import REPETITION
from tests.commands.dialog.scripted_model import ended


def stream_of(*pieces: str, end: AnswerEnd | BaseException) -> TextStream:
    """A stream of pieces with an end."""
    yield from pieces
    if isinstance(end, BaseException):
        raise end
    return end


def shown(*pieces: str, end: AnswerEnd | BaseException) -> tuple[ShownAnswer, str]:
    """An answer, and what is seen of it on a terminal that wraps words; raised errors are swallowed."""
    screen = io.StringIO()
    answer = ShownAnswer(WrappedScreen(screen, 80), iter(range(100)).__next__)
    try:
        answer.read(stream_of(*pieces, end=end))
    except (EngineFailed, KeyboardInterrupt):
        assert isinstance(end, BaseException)
    return answer, screen.getvalue()


@pytest.mark.parametrize("failure", [EngineFailed("It broke."), KeyboardInterrupt()])
def test_an_answer_that_breaks_off_is_shown_to_its_last_word(failure):
    answer, seen = shown("one ", "two", end=failure)
    assert (answer.text, seen) == ("one two", "one two\n")
    assert answer.figures.total_s > 0


def test_a_failure_before_the_first_word_shows_nothing():
    assert shown("", end=EngineFailed("It broke."))[1] == ""


def test_the_figures_are_those_of_the_clock():
    figures = shown("a", "", "b", end=ended("stop"))[0].figures
    assert (figures.num_pieces, figures.first_s, figures.total_s, figures.rate) == (2, 1, 2, 1)


def test_a_thought_counts_although_it_is_not_shown():
    now, end = 0.0, ended("stop")
    end.completion_tokens = 43

    def stream() -> TextStream:
        nonlocal now
        for time, piece in ((1.0, ""), (20.0, ""), (21.0, "a"), (22.0, "b")):
            now = time
            yield piece
        return end

    answer = ShownAnswer(WrappedScreen(io.StringIO(), 80), lambda: now)
    answer.read(stream())
    assert (answer.figures.first_s, answer.figures.rate) == (1.0, 2.0)


@pytest.mark.parametrize(
    ("text", "end", "words"),
    [
        ("x", ended("stop"), None),
        ("x", AnswerEnd(), None),
        ("x", ended("length"), "the answer has reached its limit of tokens"),
        ("x", ended("length", REPETITION), "the answer repeated itself and was ended"),
        ("x", ended("content_filter"), "the server's content filter has ended the answer"),
        ("\n", ended("length"), "the limit of tokens was reached before the answer began; --max-tokens sets a hig"),
        ("", ended("stop"), "the model ended without a text"),
    ],
)
def test_the_end_in_words(text, end, words):
    told = shown(text, end=end)[0].end_words()
    assert (told is None) == (words is None) and (told or "").startswith(words or "")
