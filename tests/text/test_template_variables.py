"""Variables whose names mean something else in templates are rejected."""

import pytest

from app.contract.errors import InvalidValue, UnsupportedParameter
from app.text.template_variables import check_names
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
