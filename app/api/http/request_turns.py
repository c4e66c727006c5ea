"""Lets the requests of one client begin a few at a time, so that those of others come between."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict, deque

from starlette.types import ASGIApp, Receive, Scope, Send

from app.api.http.accounts import account_of_address

MAX_BEGUN = 8
"""Requests of an address that begin in one turn of the event loop: each takes about half a millisecond of it."""


class RequestTurns:
    """Lets at most MAX_BEGUN requests of an address begin in one turn of the event loop, in the order of their coming.

    A client that opens hundreds of connections at once would else keep the loop until all of their requests have begun.
    Loop only; cancel-safe.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self._begun: Counter[str] = Counter()  # in this turn
        self._waiting: defaultdict[str, deque[asyncio.Future[None]]] = defaultdict(deque)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request or connection, when it is its turn."""
        client = scope.get("client")
        address = account_of_address(client[0]) if client else ""
        if not self._begins(address):
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting[address].append(turn)
            await turn
        await self.app(scope, receive, send)

    def _begins(self, address: str) -> bool:
        """Count a new request if it begins now; return whether it does."""
        if self._begun[address] == MAX_BEGUN:
            return False
        if not self._begun:
            asyncio.get_running_loop().call_soon(self._end_turn)
        self._begun[address] += 1
        return True

    def _end_turn(self) -> None:
        """Begin the next turn with the requests that wait."""
        self._begun.clear()
        for address, waiting in list(self._waiting.items()):
            while waiting and self._begun[address] < MAX_BEGUN:
                turn = waiting.popleft()
                if not turn.done():  # by a cancelled request
                    self._begun[address] += 1
                    turn.set_result(None)
            if not waiting:
                del self._waiting[address]
        if self._begun:
            asyncio.get_running_loop().call_soon(self._end_turn)
