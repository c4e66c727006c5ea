"""A check notices every token that is lost, doubled or wrong, and notes when events came."""

import pytest

from benchmarks.streams.stream_check import Recorder, StreamCheck, TextStreamCheck
from tests.benchmarks.streams.tokens import STREAM, faults, token


@pytest.fixture
def check() -> StreamCheck:
    return StreamCheck(STREAM, Recorder())


def test_tokens_in_order_are_counted_with_their_ages_and_gaps():
    recorder = Recorder()
    check = StreamCheck(STREAM, recorder)
    check.take(token(1, 100.0), 100.5)
    check.take(token(2, 101.0) + token(3, 101.0), 101.25)
    assert (check.number, *faults(check)) == (3, 0, 0, 0)
    record = recorder.begin()
    assert (record.num_events, record.num_tokens, len(record.gaps)) == (2, 3, 1)
    assert record.ages.longest == pytest.approx(0.5, abs=1e-5)
    assert record.gaps.longest == 0.75
    assert recorder.record.num_events == 0


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
def test_every_kind_of_fault_is_counted(check, texts, expected):
    for text in texts:
        check.take(text, 200.0)
    assert faults(check) == expected


@pytest.mark.parametrize(("first", "count"), [(2, 1), (0, 1), (1, 2)])
def test_numbers_that_differ_from_the_tokens_are_faults(check, first, count):
    check.take(token(1), 200.0, first, count)
    assert faults(check) == (0, 0, 1)


def test_correct_numbers_are_no_fault(check):
    check.take(token(1), 200.0, 1, 1)
    check.take(token(2) + token(3), 200.0, 2, 2)
    assert (check.number, *faults(check)) == (3, 0, 0, 0)


def test_the_text_of_a_model_is_kept():
    check = TextStreamCheck(0, Recorder())
    check.take("Hello", 1.0, 1, 2)
    check.take(" world", 2.0, 3, 1)
    check.take("!", 3.0, 9, 1)
    assert (check.text, check.number, check.wrong) == ("Hello world!", 4, 1)
