"""A client that reads one answer over quire.v1, and resumes it on another WebSocket."""

from __future__ import annotations

from typing import Any

import orjson
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException
from websockets.typing import Subprotocol

from app.loadgen.target import Target
from benchmarks.resuming.answer_reader import AnswerReader, Broken
from benchmarks.resuming.asked import Asked

CREDIT = 10**6
TTL_S = 300
_ID = "a"
_LATER = ("model_loading", "draining", "overloaded", "rate_limit_exceeded", "queue_timeout")


class SocketAnswer(AnswerReader):
    """Implements `AnswerReader` over a WebSocket of its own.

    Attributes:
        credit: how many tokens it asks for at a time; when it has them it asks for as many again.
    """

    def __init__(self, asked: Asked, target: Target, *, is_kept: bool = True, credit: int = CREDIT) -> None:
        super().__init__(asked, target, is_kept=is_kept)
        self.credit = credit

    async def read_once(self) -> None:
        url = f"ws://{self._target.host}:{self._target.port}/ws"
        try:
            async with connect(
                url, subprotocols=[Subprotocol("quire.v1")], proxy=None, compression=None, max_size=None
            ) as connection:
                try:
                    await self._read(connection)
                finally:
                    connection.transport.abort()  # a polite end would wait for a server that is gone
        except (OSError, TimeoutError, WebSocketException) as error:
            raise Broken(str(error)) from None
        if not self.told.is_over:
            raise Broken("the connection ended")

    async def _read(self, connection: ClientConnection) -> None:
        key = {"key": self._target.key} if self._target.key else {}
        await _send(connection, {"t": "hello", "protocol": "quire.v1", **key})
        await _send(connection, self._opening())
        upto = [position + self.credit for position in self.told.positions]
        async for message in connection:
            frame = orjson.loads(message)
            if frame["t"] == "ping":
                await _send(connection, {"t": "pong", "ts": frame["ts"]})
            elif frame["t"] == "accepted":
                self.stream = frame["stream"] if self._key else None
                self.on_news()
            elif frame["t"] == "error" and self._may_come_back(frame["code"]):
                raise Broken(frame["code"])
            else:
                self.told.take_frame(frame)
                self.on_news()
            if self.told.is_over:
                return
            if any(position >= limit for position, limit in zip(self.told.positions, upto, strict=True)):
                upto = [position + self.credit for position in self.told.positions]
                await _send(connection, {"t": "credit", "id": _ID, "upto": upto})

    def _opening(self) -> dict[str, Any]:
        """Return the frame that begins the answer, or lets it go on."""
        frame: dict[str, Any] = {"id": _ID, "credit": self.credit}
        if self.stream is not None:
            return {**frame, "t": "resume", "stream": self.stream, "after": self.told.positions}
        keeping = {"ttl_s": TTL_S, "idempotency_key": self._key} if self._key else {}
        return {**frame, "t": "start", "request": self.asked.body, **keeping}

    def _may_come_back(self, code: str) -> bool:
        """Return whether an error is none of the answer. A position that was not told yet is told later, where the
        journal was behind.
        """
        return code in _LATER or (code == "invalid_value" and self.stream is not None)


async def _send(connection: ClientConnection, frame: dict[str, Any]) -> None:
    await connection.send(orjson.dumps(frame).decode())
