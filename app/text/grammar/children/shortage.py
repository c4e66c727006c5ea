"""Too little of what another process needs: descriptors, memory, processes."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from app.contract.errors import Overloaded

_ERRORS = frozenset([errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.EAGAIN, errno.ETOOMANYREFS])


class Shortage(Overloaded):
    """No grammar can be tried now, for the system's `reason`, such as "Too many open files"."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"The server cannot try a grammar now: {reason}. Try again later.")
        self.reason = reason


@contextmanager
def telling_shortages() -> Iterator[None]:
    """Raise Shortage where a call of the system fails for one; other errors stay. Any thread."""
    try:
        yield
    except OSError as error:
        if error.errno not in _ERRORS:
            raise
        raise Shortage(error.strerror or str(error)) from error
