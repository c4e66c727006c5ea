"""A tally notices every token that is lost, doubled or wrong, and notes when events came."""

import pytest

from benchmarks.streams.script import prefix_of, stamp_of
from benchmarks.streams.tally import Book, Tally, TextTally

STREAM = 42


def token(number: int, made: float = 100.0, stream: int = STREAM) -> str:
    """The text of a token."""
    return f"{prefix_of(stream)}{number:05x}{stamp_of(made):08x}"


@pytest.fixture
def tally() -> Tally:
    return Tally(STREAM, Book())


def faults(tally: Tally) -> tuple[int, int, int]:
    """What went wrong."""
    return tally.lost, tally.doubled, tally.wrong


def test_tokens_in_order_are_counted_with_their_ages_and_gaps():
    book = Book()
    tally = Tally(STREAM, book)
    tally.take(token(1, 100.0), 100.5)
    tally.take(token(2, 101.0) + token(3, 101.0), 101.25)
    assert (tally.number, *faults(tally)) == (3, 0, 0, 0)
    record = book.begin()
    assert (record.num_events, record.num_tokens, len(record.gaps)) == (2, 3, 1)
    assert record.ages.longest == pytest.approx(0.5, abs=1e-5)
    assert record.gaps.longest == 0.75
    assert book.record.num_events == 0


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ([token(1), token(4)], (2, 0, 0)),
        ([token(1), token(2), token(2)], (0, 1, 0)),
        ([token(1) + token(2), token(1) + token(2)], (0, 2, 0)),
        ([token(2)], (1, 0, 0)),
        ([token(1, stream=43)], (0, 0, 1)),
        ([token(1)[:-1] + "z"], (0, 0, 1)),
        ([token(1)[:-2]], (0, 0, 1)),
        ([token(1), " planted"], (0, 0, 1)),
    ],
)
def test_a_planted_fault_is_noticed(tally, texts, expected):
    for text in texts:
        tally.take(text, 200.0)
    assert faults(tally) == expected


@pytest.mark.parametrize(("first", "count"), [(2, 1), (0, 1), (1, 2)])
def test_numbers_of_the_protocol_must_be_those_of_the_tokens(tally, first, count):
    tally.take(token(1), 200.0, first, count)
    assert faults(tally) == (0, 0, 1)


def test_right_numbers_of_the_protocol_are_no_fault(tally):
    tally.take(token(1), 200.0, 1, 1)
    tally.take(token(2) + token(3), 200.0, 2, 2)
    assert (tally.number, *faults(tally)) == (3, 0, 0, 0)


def test_the_text_of_a_real_model_is_kept():
    tally = TextTally(0, Book())
    tally.take("Hello", 1.0, 1, 2)
    tally.take(" world", 2.0, 3, 1)
    tally.take("!", 3.0, 9, 1)
    assert (tally.text, tally.number, tally.wrong) == ("Hello world!", 4, 1)
