"""One request's failure is handed to whoever ends that request, and to nobody else."""

import pytest

from app.runtime.contain import contain


class Panic(BaseException):
    """As a panic in a native library arrives in Python."""


@pytest.mark.parametrize("kind", [ValueError, Panic])
def test_what_the_block_raises_is_handed_over_and_ends_there(kind: type[BaseException]):
    seen: list[BaseException] = []
    error = kind("secret")
    with contain(seen.append):
        raise error
    assert seen == [error]


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_what_ends_the_process_goes_on(kind: type[BaseException]):
    with pytest.raises(kind), contain(lambda error: pytest.fail("it is not ours")):
        raise kind


def test_what_else_goes_on_is_the_callers_choice():
    seen: list[BaseException] = []
    with pytest.raises(GeneratorExit), contain(seen.append, (GeneratorExit,)):
        raise GeneratorExit
    assert seen == []


def test_it_can_be_used_again_and_a_block_without_an_error_calls_nobody():
    seen: list[BaseException] = []
    contained = contain(seen.append)
    for divisor in (1, 0, 2, 0):
        with contained:
            _ = 1 / divisor
    assert [type(error) for error in seen] == [ZeroDivisionError] * 2
