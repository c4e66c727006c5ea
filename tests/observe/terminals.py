"""Streams for tests of the console and the log."""

import io


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        """Always true."""
        return True
