"""The places of masks in the memory that is shared with the process that finds them, and who has which."""

from __future__ import annotations

from collections.abc import Iterable

from app.engine.execute.remote_sequence import RemoteSequence


class MaskRegions:
    """The regions of `count` masks of sequences. Engine thread only."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._free = list(range(count))

    @property
    def num_free(self) -> int:
        """How many nobody has."""
        return len(self._free)

    def spare(self) -> int | None:
        """Return a region for a sequence that has no row yet: half of them are kept for those that have one."""
        return self._free.pop() if 2 * len(self._free) > self._count else None

    def take(self, others: Iterable[RemoteSequence]) -> int | None:
        """Return a region for the next sequence to get a row; None if there is none.

        Where none is free it is that of the first of `others`, sequences without rows whose masks are there.
        """
        if not self._free and (other := next((each for each in others if each.region >= 0), None)) is not None:
            self.free(other)
        return self._free.pop() if self._free else None

    def free(self, sequence: RemoteSequence) -> None:
        """Take a sequence's region away, if it has one, and with it its mask."""
        if sequence.region >= 0:
            self._free.append(sequence.region)
            sequence.region, sequence.is_ready = -1, False
