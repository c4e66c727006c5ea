"""Variables whose names mean something else in templates are rejected."""

import pytest

from app.contract.errors import InvalidValue, UnsupportedParameter
from app.text.template.template_variables import check_names, with_both_switches
from tests.text.toys import toy


def test_names_of_a_template_s_own_are_accepted():
    check_names(["enable_thinking", "a_b1", "_"], toy("byte_level")[0])


@pytest.mark.parametrize("name", ["self", "namespace", "loop", "true", "messages", "chat_template"])
def test_a_name_with_a_meaning_of_its_own_is_rejected(name: str):
    with pytest.raises(UnsupportedParameter) as caught:
        check_names(["a", name], toy("byte_level")[0])
    assert caught.value.param == f"chat_template_kwargs.{name}"


@pytest.mark.parametrize("name", ["", "a b", "1a", "ä", 5, None])
def test_what_is_no_name_is_rejected(name: object):
    with pytest.raises(InvalidValue, match="a variable needs a name such as a_b1"):
        check_names([name], toy("byte_level")[0])


def test_reasoning_is_switched_under_both_names_unless_both_are_given():
    assert with_both_switches({"enable_thinking": False, "a": 1}) == {
        "enable_thinking": False, "thinking": False, "a": 1
    }  # fmt: skip
    for given in ({"enable_thinking": True, "thinking": False}, {"thinking": True}, {"a": 1}, {}):
        assert with_both_switches(given) == given


def test_a_switch_that_is_neither_true_nor_false_is_rejected():
    with pytest.raises(InvalidValue, match=r"^chat_template_kwargs.enable_thinking is 'no'; it must be true or false"):
        with_both_switches({"enable_thinking": "no"})
