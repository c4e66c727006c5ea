"""A client that reads one answer over HTTP, as server-sent events or as lines of JSON, and comes back to it."""

from __future__ import annotations

import asyncio
import socket

import httptools
import orjson

from app.loadgen.target import Target
from benchmarks.resuming.answer_reader import AnswerReader, Broken
from benchmarks.resuming.asked import NDJSON, Asked
from benchmarks.resuming.told import WrongAnswer

CHAT = "/v1/chat/completions"
READ_BYTES = 65536
SLOW_BYTES = 512
_ACCEPTED = {True: "application/x-ndjson", False: "text/event-stream"}
_OK, _INVALID, _TOO_MANY, _UNAVAILABLE = 200, 400, 429, 503


class HttpAnswer(AnswerReader):
    """Implements `AnswerReader` over HTTP, with a connection for each request.

    Attributes:
        pause_s: how long it waits before it reads the next few bytes; 0 reads promptly.
    """

    def __init__(self, asked: Asked, target: Target, *, is_kept: bool = True, pause_s: float = 0.0) -> None:
        super().__init__(asked, target, is_kept=is_kept)
        self.pause_s = pause_s

    async def read_once(self) -> None:
        body = _Body(self.asked.kind == NDJSON)
        try:
            stream, writer = await asyncio.open_connection(**self._target.connecting, limit=SLOW_BYTES)
        except OSError as error:
            raise Broken(str(error)) from None
        try:
            if self.pause_s:
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SLOW_BYTES)
            writer.write(self._message())
            while not body.is_whole:
                await asyncio.sleep(self.pause_s)
                self._take(body, await stream.read(SLOW_BYTES if self.pause_s else READ_BYTES))
        except (OSError, httptools.HttpParserError) as error:
            raise Broken(str(error)) from None
        finally:
            writer.transport.abort()  # a graceful close would wait for a peer that does not read
        if body.status != _OK:
            self._refuse(body.status, body.rest)
        self.told.is_over = all(choice.end is not None for choice in self.told.choices)
        if not self.told.is_over:
            raise WrongAnswer("the body is complete, and the answer is not")

    def _message(self) -> bytes:
        accepted = f"accept: {_ACCEPTED[self.asked.kind == NDJSON]}\r\n"
        if self.stream is not None:
            after = ".".join(map(str, self.told.positions))
            head = self._target.head("GET", f"/v1/streams/{self.stream}?after={after}")
            return f"{head}{accepted}\r\n".encode()
        payload = orjson.dumps({**self.asked.body, "stream": True, "stream_options": {"include_usage": True}})
        keeping = f"x-quire-resume: 1\r\nidempotency-key: {self._key}\r\n" if self._key else ""
        line, _, rest = self._target.post(CHAT, payload).partition(b"\r\n")
        return line + f"\r\n{accepted}{keeping}".encode() + rest

    def _take(self, body: _Body, piece: bytes) -> None:
        if not piece:
            raise Broken("the connection ended")
        body.feed(piece)
        if body.status != _OK:
            return
        if self._key is not None and body.stream is not None:
            self.stream = body.stream
        for chunk in body.chunks():
            self.told.take_chunk(chunk)
        self.on_news()

    def _refuse(self, status: int, content: bytes) -> None:
        """Raise for a rejection. A position that was not told yet is told later, where the journal was behind."""
        is_behind = status == _INVALID and self.stream is not None
        if is_behind or status in (_TOO_MANY, _UNAVAILABLE):
            raise Broken(f"status {status}")
        raise WrongAnswer(f"status {status}: {content[:300].decode('utf-8', 'replace')}")


class _Body:
    """Parses a response.

    Attributes:
        status: 0 before its head.
        stream: the id of the answer, if it is kept.
        rest: the bytes that are no whole chunk yet; of a rejection all.
        is_whole: whether the last byte has come.
    """

    def __init__(self, is_ndjson: bool) -> None:
        self.status = 0
        self.stream: str | None = None
        self.rest = b""
        self.is_whole = False
        self._separator = b"\n" if is_ndjson else b"\n\n"
        self._http = httptools.HttpResponseParser(self)

    def feed(self, piece: bytes) -> None:
        """Parse the next bytes; raises HttpParserError."""
        self._http.feed_data(piece)

    def chunks(self) -> list[dict[str, object]]:
        """Return the chunks that are whole, once."""
        *events, self.rest = self.rest.split(self._separator)
        lines = [line.removeprefix(b"data: ") for event in events for line in event.split(b"\n")]
        return [orjson.loads(line) for line in lines if line.startswith(b"{")]

    def on_header(self, name: bytes, value: bytes) -> None:
        """Note the id of the answer; called by the parser."""
        if name.lower() == b"x-quire-stream-id":
            self.stream = value.decode()

    def on_headers_complete(self) -> None:
        """Note the status; called by the parser."""
        self.status = self._http.get_status_code()

    def on_body(self, body: bytes) -> None:
        """Keep the next bytes; called by the parser."""
        self.rest += body

    def on_message_complete(self) -> None:
        """Note the end; called by the parser."""
        self.is_whole = True
