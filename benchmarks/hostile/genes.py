"""Numbers from which a grammar is made: what the search keeps, changes and combines."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

Item = TypeVar("Item")

NUMBERS = 2**16
MAX_GENES = 2000


class Genes:
    """Gives numbers one after the other; when those that it was made with are used up, random ones.

    Attributes:
        taken: the numbers that it gave: made with these, it gives the same again.
    """

    def __init__(self, numbers: Sequence[int], source: random.Random) -> None:
        self.taken: list[int] = []
        self._numbers = numbers
        self._source = source

    def below(self, count: int) -> int:
        """Return a number from 0 to `count - 1`."""
        place = len(self.taken)
        self.taken.append(self._numbers[place] if place < len(self._numbers) else self._source.randrange(NUMBERS))
        return self.taken[-1] % count

    def of(self, items: Sequence[Item]) -> Item:
        """Return one of `items`."""
        return items[self.below(len(items))]

    @property
    def is_long(self) -> bool:
        """Whether what is made is to come to an end."""
        return len(self.taken) > MAX_GENES


def changed(numbers: Sequence[int], other: Sequence[int], source: random.Random) -> list[int]:
    """Return numbers like `numbers`: with some others, a part doubled or left out, or the rest of `other`."""
    found, place = list(numbers), source.randrange(len(numbers) + 1)
    match source.randrange(4):
        case 0:
            found[place:] = other[source.randrange(len(other) + 1) :]
        case 1:
            found[place:place] = found[place : place + source.randrange(20)]
        case 2:
            del found[place : place + source.randrange(20)]
        case _:
            for _ in range(source.randrange(1, 5)):
                if found:
                    found[source.randrange(len(found))] = source.randrange(NUMBERS)
    return found[: 2 * MAX_GENES]
