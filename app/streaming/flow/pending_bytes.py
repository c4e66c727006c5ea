"""What waits for all readers of one server, in bytes; above a limit, new work is refused until some of it is read.

It is counted by account, so that one whose readers take nothing does not lock the others out: above the limit it is
refused who holds an equal share of it or more. What waits in all is so bounded by the limit times the harmonic number
of the accounts, and by what each request may make.
"""

from __future__ import annotations

from weakref import WeakValueDictionary

from app.contract.errors import Overloaded


class AccountBytes:
    """What waits for the readers of one account; those that hold some of it count it here. Loop only."""

    __slots__ = ("__weakref__", "num_bytes")

    def __init__(self) -> None:
        self.num_bytes = 0


class PendingBytes:
    """What waits, by account; one of whose answers none is left is forgotten. Loop only."""

    def __init__(self, limit: int | None = None) -> None:
        self._limit = limit
        self._accounts: WeakValueDictionary[str, AccountBytes] = WeakValueDictionary()

    @property
    def num_bytes(self) -> int:
        """How much waits in all."""
        return sum(one.num_bytes for one in self._accounts.values())

    def of(self, account: str) -> AccountBytes:
        """Return where the answers of `account` are counted; it is kept by those that count there."""
        found = self._accounts.get(account)
        if found is None:
            found = self._accounts[account] = AccountBytes()
        return found

    def check(self, account: str) -> None:
        """Refuse a new request of `account` while too much waits, much of it for its own readers.

        Raises:
            Overloaded: more than the limit waits, and at least an equal share of it for the account.
        """
        if self._limit is None or (num_bytes := self.num_bytes) <= self._limit:
            return
        num_own = self.of(account).num_bytes
        num_others = sum(one.num_bytes > 0 for name, one in self._accounts.items() if name != account)
        if num_own >= self._limit // (num_others + 1):
            raise Overloaded(
                f"{num_bytes} bytes of answers wait for clients that do not read them, {num_own} of them for this "
                f"account; this server holds at most {self._limit} (--max-pending-bytes). Try again later."
            )
