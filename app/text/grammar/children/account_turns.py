"""Whose work on grammars is next: the account's that has cost least, where little counts as nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TypeVar

SHARE = 0.25
"""An account whose work takes at most this part of the time comes no later than one that has had none done.

Without it an account that goes on for long would come behind each new one, and new ones may come without end.
"""
MAX_SPENT_S = 15.0
"""More is forgiven, so that what any account has spent is forgotten after a minute."""
MAX_ACCOUNTS = 1024

Item = TypeVar("Item")


class AccountTurns:
    """Tells whose turn it is by what the work of each account has taken. Not thread-safe.

    What was spent fades, by SHARE seconds in each second. Where it is the same, who came first has the first turn.
    """

    def __init__(self) -> None:
        self._spent: dict[str, float] = {}  # as long as it is more than what has faded since the machine started

    def spend(self, account: str, seconds: float) -> None:
        """Note what a piece of work for an account took."""
        spent, faded = self._spent, _faded()
        spent[account] = min(max(spent.get(account, faded), faded) + seconds, faded + MAX_SPENT_S)
        if len(spent) > MAX_ACCOUNTS:
            most = sorted(spent, key=spent.__getitem__, reverse=True)[: MAX_ACCOUNTS // 2]
            self._spent = {name: spent[name] for name in most}

    def next(self, items: Iterable[Item], account_of: Callable[[Item], str]) -> Item:
        """Return the item whose turn it is; the first one of `items` came first."""
        spent, faded = self._spent, _faded()
        return min(items, key=lambda item: max(spent.get(account_of(item), faded), faded))


def _faded() -> float:
    """Return the seconds of each account that have faded since the machine started."""
    return SHARE * time.monotonic()
