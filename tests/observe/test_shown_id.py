"""Logs show eight digits of the id of an answer."""

import pytest

from app.observe.shown_id import shown_id


@pytest.mark.parametrize(("before", "behind"), [("chatcmpl-", ""), ("cmpl-", "-3"), ("resp_", ""), ("", "")])
def test_logs_show_eight_digits_of_the_id_of_an_answer(before: str, behind: str):
    assert shown_id(before + "0123456789abcdef" + behind) == before + "01234567"
