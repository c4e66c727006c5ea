"""By size and time of change a file is found to be the one whose header was read, when its data are read later."""

from __future__ import annotations

import os
from typing import IO, NamedTuple


class FileState(NamedTuple):
    """The size of a file in bytes, and when it was last changed."""

    num_bytes: int
    changed_ns: int

    @classmethod
    def of(cls, stream: IO[bytes]) -> FileState:
        """Return the state of an open file; raises OSError."""
        stat = os.fstat(stream.fileno())
        return cls(stat.st_size, stat.st_mtime_ns)
