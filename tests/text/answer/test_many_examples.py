"""The properties of all parsers with 10,000 examples each."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.text.calls.formats import FORMATS
from tests.text.answer import test_reasoning
from tests.text.answer.answers import WRITERS
from tests.text.calls import test_formats
from tests.text.calls.test_formats import (
    CALLS,
    PLACE,
    PLACES,
    PLAIN,
    TEXT_CALLS,
    check_calls,
    check_truncated,
    way_of,
)
from tests.text.reading import test_json_span

pytestmark = [pytest.mark.long, pytest.mark.timeout(4 * 3600)]  # some minutes each on a free core
many = settings(max_examples=10_000)
OTHERS = [
    (test_reasoning.test_every_cut_gives_the_same_events, test_reasoning.BLOCKS),
    (test_json_span.test_the_end_is_found_in_every_cut, test_json_span.VALUES),
]


# To make up calls takes longer than to read them, so each example is one of every family that can write it.
@pytest.mark.parametrize("way", CALLS)
def test_calls_of_families(way):
    names = [name for name in WRITERS if way_of(name) == way]
    assert names

    @many
    @given(CALLS[way], PLAIN, PLAIN, PLACES)
    def check(calls, before, after, places):
        for name in names:
            check_calls(name, calls, before, after, places)

    check()


def test_truncated_answers_of_families():
    @many
    @given(TEXT_CALLS, PLACE)
    def check(calls, place):
        for name in WRITERS:
            check_truncated(name, calls, place)

    check()


@pytest.mark.parametrize("name", FORMATS)
def test_cuts_of_a_family(name):
    @many
    @given(data=st.data())
    def check(data):
        test_formats.test_every_cut_of_any_text_gives_the_same_events.hypothesis.inner_test(name=name, data=data)

    check()


@pytest.mark.parametrize(("test", "strategies"), OTHERS)
def test_a_machine(test, strategies):
    @many
    @given(st.fixed_dictionaries(strategies))
    def check(given):
        test.hypothesis.inner_test(**given)

    check()
