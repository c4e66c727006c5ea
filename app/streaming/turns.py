"""Places that accounts take in turn: the many requests of one stand behind each other, not before everybody else's."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from contextlib import suppress

from app.contract.errors import Overloaded


class Turns:
    """A semaphore of `num_places` with a bounded line for each account; who waits goes round. Loop only.

    Alone an account may let `max_waiting` wait. Where so many do already, it may have an equal share of them.
    """

    def __init__(self, num_places: int, max_waiting: int) -> None:
        self._num_free = num_places
        self._max_waiting = max_waiting
        self._lines: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()  # whose turn is next first
        self._num_waiting = 0

    async def acquire(self, account: str = "") -> None:
        """Wait for a place. Cancel-safe: one that was given and is not wanted any more goes to the next.

        Raises:
            Overloaded: as much is waiting as may wait.
        """
        if self._num_free:
            self._num_free -= 1
            return
        num_own = len(self._lines.get(account, ()))
        share = self._max_waiting // (len(self._lines) + (not num_own))
        if self._num_waiting >= self._max_waiting and num_own >= share:
            raise Overloaded("Too many requests are being prepared; try again later.")
        place = asyncio.get_running_loop().create_future()
        self._lines.setdefault(account, deque()).append(place)
        self._num_waiting += 1
        try:
            await place
        except asyncio.CancelledError:
            if place.cancelled():
                self._leave(account, place)
            else:
                self.release()
            raise

    def release(self) -> None:
        """Give a place back: it goes to the first of the account whose turn it is."""
        while self._lines:
            account, line = self._lines.popitem(last=False)
            place = line.popleft()
            self._num_waiting -= 1
            if line:
                self._lines[account] = line
            if not place.done():
                place.set_result(None)
                return
        self._num_free += 1

    def release_all(self) -> None:
        """Give all that wait a place."""
        for _ in range(self._num_waiting):
            self.release()

    def _leave(self, account: str, place: asyncio.Future[None]) -> None:
        line = self._lines.get(account)
        if line is None:
            return
        with suppress(ValueError):  # its turn has come since it was cancelled
            line.remove(place)
            self._num_waiting -= 1
        if not line:
            del self._lines[account]
