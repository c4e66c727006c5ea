"""Readers send due frames while they are connected, and nothing afterwards."""

from benchmarks.streams.readers import Reader


class DueClient:
    """A client that always has a due frame."""

    opening = b"ask"
    checks = ()

    def poke(self, now: float) -> bytes:
        return b"credit"


class FakeTransport:
    """A transport that keeps the written bytes, and rejects writes when it closes."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.is_over = False

    def write(self, data: bytes) -> None:
        assert not self.is_over
        self.written.append(data)

    def is_closing(self) -> bool:
        return self.is_over


def test_due_frames_are_sent_only_while_connected():
    reader, transport = Reader(DueClient(), [].append), FakeTransport()
    reader.poke(1.0)
    reader.connection_made(transport)
    reader.poke(2.0)
    transport.is_over = True
    reader.poke(3.0)
    assert transport.written == [b"ask", b"credit"]
