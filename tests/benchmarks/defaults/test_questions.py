"""The questions: forty, and what counts as right."""

import pytest

from benchmarks.defaults.questions import QUESTIONS


def test_there_are_forty_different_questions_that_do_not_have_their_answers():
    assert len({question.text for question in QUESTIONS}) == len(QUESTIONS) == 40
    assert not [question.text for question in QUESTIONS if question.is_right(question.text)]


@pytest.mark.parametrize(
    ("number", "answer", "is_right"),
    [
        (0, "It is PARIS.", True),
        (0, "It is Parish.", False),
        (10, "2 + 2 = 4", True),
        (10, "2 + 2 = 14", False),
        (25, "H₂O", True),
        (37, "Cows do.", True),
    ],
)
def test_a_right_answer_has_one_of_the_words(number, answer, is_right):
    assert QUESTIONS[number].is_right(answer) is is_right
