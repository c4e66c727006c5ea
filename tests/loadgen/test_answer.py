"""The times of an answer, by their definitions."""

import pytest

from app.loadgen.answer import Answer
from tests.loadgen.made import made_answer


def test_times_count_from_sending():
    answer = made_answer(10.0, (0.5, 0.6, 0.9), ended=11.0)
    assert answer.ttft == pytest.approx(0.5)
    assert answer.e2e == pytest.approx(1.0)
    assert answer.gaps == pytest.approx([0.1, 0.3])


def test_time_per_output_token_leaves_the_first_one_out():
    assert made_answer(0.0, (0.4, 1.0), output_tokens=4).tpot == pytest.approx(0.6 / 3)


@pytest.mark.parametrize("answer", [made_answer(times=(0.3,)), made_answer(times=(), ended=0.3, output_tokens=1)])
def test_one_token_has_no_time_per_token(answer):
    assert answer.tpot is None


def test_without_text_there_is_no_first_token_but_an_end():
    answer = made_answer(1.0, (), ended=1.5)
    assert (answer.ttft, answer.gaps) == (None, [])
    assert answer.e2e == pytest.approx(0.5)


def test_tokens_are_chunks_where_the_server_does_not_tell():
    assert made_answer(output_tokens=None).num_output == 3
    assert made_answer(output_tokens=7).num_output == 7


def test_late_is_later_than_it_could_be_sent():
    assert Answer(due=1.0, ready=3.0, sent=3.5).late == pytest.approx(0.5)


def test_only_what_is_open_can_fail():
    answer = made_answer()
    answer.fail("cut", "it was cut", 9.0)
    assert (answer.status, answer.error, answer.ended) == ("completed", "", 0.4)
