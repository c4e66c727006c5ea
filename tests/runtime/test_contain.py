"""`contain` hands an error to a callback and lets no error but those of the process's end pass."""

import pytest

from app.runtime.contain import contain


class Panic(BaseException):
    """An error like the one that PyO3 raises for a panic in a native library."""


@pytest.mark.parametrize("kind", [ValueError, Panic])
def test_errors_go_to_the_callback_and_are_not_raised(kind: type[BaseException]):
    seen: list[BaseException] = []
    error = kind("secret")
    with contain(seen.append):
        raise error
    assert seen == [error]


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_errors_that_end_the_process_are_raised(kind: type[BaseException]):
    with pytest.raises(kind), contain(lambda error: pytest.fail("contain caught it")):
        raise kind


def test_the_caller_can_let_other_errors_through():
    seen: list[BaseException] = []
    with pytest.raises(GeneratorExit), contain(seen.append, (GeneratorExit,)):
        raise GeneratorExit
    assert seen == []


def test_it_can_be_reused_and_calls_nothing_without_an_error():
    seen: list[BaseException] = []
    contained = contain(seen.append)
    for divisor in (1, 0, 2, 0):
        with contained:
            _ = 1 / divisor
    assert [type(error) for error in seen] == [ZeroDivisionError] * 2
