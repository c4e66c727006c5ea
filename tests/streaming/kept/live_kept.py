"""Kept streams whose engine and timers are those of tests."""

from __future__ import annotations

from app.contract.errors import StreamNotFound
from app.streaming.kept.kept_streams import KeptStreams
from app.streaming.kept.live_stream import CHOICE_BYTES, STREAM_BYTES, LiveStream
from app.streaming.kept.waiting_reader import WaitingReader
from tests.streaming.kept.live_engine import LateCalls, LiveEngine, finished, live_stream

ROOM = STREAM_BYTES + CHOICE_BYTES + 200  # of one short stream


class Kept:
    """Kept streams that tests start, end and let go."""

    def __init__(self, max_bytes: int = 2**20) -> None:
        self.engine, self.timers = LiveEngine(), LateCalls()
        self.kept = KeptStreams(max_bytes, call_later=self.timers)

    def start(
        self, stream_id: str, tenant: str | None = None, goes_on_from: str | None = None
    ) -> tuple[LiveStream, WaitingReader] | None:
        stream = live_stream(self.engine, stream_id, tenant=tenant)
        if not self.kept.keep(stream, goes_on_from):
            return None
        stream.start()
        reader = WaitingReader(stream)
        reader.open()
        return stream, reader

    def ended(self, stream_id: str, tenant: str | None = None, goes_on_from: str | None = None) -> LiveStream | None:
        """A stream that has ended, and that nobody reads."""
        found = self.start(stream_id, tenant, goes_on_from)
        if found is None:
            return None
        self.engine.put(stream_id, finished(stream_id))
        found[1].close()
        return found[0]

    def has(self, stream_id: str, tenant: str | None = None) -> bool:
        try:
            return self.kept.find(stream_id, tenant).id == stream_id
        except StreamNotFound:
            return False
