"""What goes over the wire stays the same, byte for byte, until somebody wants it to change."""

import pytest

from tests.api.wire.golden_bytes import Case, cases, read

EXPECTED = read()


@pytest.mark.parametrize(("name", "case"), [pytest.param(*one, id=one[0]) for one in cases()])
async def test_a_response_has_the_bytes_that_it_had(name: str, case: Case):
    assert await case.bytes() == EXPECTED[name]


def test_each_response_that_is_kept_is_checked():
    assert [*EXPECTED] == [name for name, _ in cases()]
