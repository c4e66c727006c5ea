"""The properties of all parsers with 10,000 examples each."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.text.parsing.formats import FORMATS
from tests.text.parsing import test_formats, test_json_span, test_reasoning
from tests.text.parsing.answers import WRITERS

pytestmark = [pytest.mark.long, pytest.mark.timeout(4 * 3600)]  # a minute each on a free core
many = settings(max_examples=10_000)
OF_FAMILIES = [
    (test_formats.test_calls_are_read_as_they_were_written, WRITERS),
    (test_formats.test_every_cut_of_any_text_gives_the_same_events, FORMATS),
    (test_formats.test_a_truncated_answer_begins_as_the_whole_one, WRITERS),
]
OTHERS = [
    (test_reasoning.test_every_cut_gives_the_same_events, test_reasoning.BLOCKS),
    (test_json_span.test_the_end_is_found_in_every_cut, test_json_span.VALUES),
]


@pytest.mark.parametrize(("test", "name"), [(test, name) for test, names in OF_FAMILIES for name in names])
def test_a_family(test, name):
    @many
    @given(data=st.data())
    def check(data):
        test.hypothesis.inner_test(name=name, data=data)

    check()


@pytest.mark.parametrize(("test", "strategies"), OTHERS)
def test_a_machine(test, strategies):
    @many
    @given(st.fixed_dictionaries(strategies))
    def check(given):
        test.hypothesis.inner_test(**given)

    check()
