"""Readers send what is due while their connection is there, and nothing after it."""

from benchmarks.streams.readers import Reader


class DueClient:
    """A client that always has something to send."""

    opening = b"ask"
    tallies = ()

    def poke(self, now: float) -> bytes:
        return b"credit"


class Wire:
    """A transport that keeps what is written, and takes nothing once it closes."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.is_over = False

    def write(self, data: bytes) -> None:
        assert not self.is_over
        self.written.append(data)

    def is_closing(self) -> bool:
        return self.is_over


def test_what_is_due_is_sent_while_the_connection_is_there():
    reader, wire = Reader(DueClient(), [].append), Wire()
    reader.poke(1.0)
    reader.connection_made(wire)
    reader.poke(2.0)
    wire.is_over = True
    reader.poke(3.0)
    assert wire.written == [b"ask", b"credit"]
