"""A request body while it is received."""

from __future__ import annotations

from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap

SMALL_BYTES = 64 * 2**10


class BodyBuffer:
    """Collects the pieces of a body of at most `max_bytes`. Loop only.

    A large body has pages of its own, which the system gets back as soon as the body is dropped. In malloc's memory its
    pieces would lie between other objects, and the holes that they leave would stay with the process for ever.

    Attributes:
        num_bytes: received so far.
    """

    def __init__(self, max_bytes: int) -> None:
        self.num_bytes = 0
        self._max_bytes = max_bytes
        self._pieces: list[bytes] = []
        self._pages: mmap | None = None

    def add(self, piece: bytes) -> None:
        """Add the next piece; the caller checks that there is room."""
        self.num_bytes += len(piece)
        if self._pages is None and self.num_bytes > SMALL_BYTES:
            # They take memory only where they are written.
            self._pages = mmap(-1, self._max_bytes, flags=MAP_PRIVATE | MAP_ANONYMOUS)
            self._pages.write(b"".join(self._pieces))
            self._pieces.clear()
        if self._pages is None:
            self._pieces.append(piece)
        else:
            self._pages.write(piece)

    def take(self) -> bytes:
        """Return the body, and release what holds it."""
        if self._pages is None:
            return b"".join(self._pieces)
        with self._pages as pages:
            return pages[: self.num_bytes]
