"""Masks that a test plays the process of."""

from collections.abc import Callable, Iterator

import pytest

from tests.engine.execute.mask_setting import Play, Setting


@pytest.fixture
def make() -> Iterator[Callable[..., Setting]]:
    made: list[Setting] = []

    def make(*plays: Play | None, **fields: int) -> Setting:
        made.append(Setting(*plays, **fields))
        return made[-1]

    yield make
    for each in made:
        each.close()
