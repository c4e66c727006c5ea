"""Sends one session to an HTTP client as one JSON body, when all choices have ended."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from starlette.types import Receive, Scope, Send

from app.api.http.access_log import access_record, figures_of
from app.api.http.connection import run_until_disconnect
from app.api.http.context import ApiContext
from app.api.http.error_response import error_response
from app.api.wire.api_request import ApiRequest
from app.api.wire.json_line import next_piece
from app.api.wire.response_head import start_message
from app.api.wire.wire import Wire
from app.contract.events import PromptScored, TokenDelta
from app.streaming.kept.waiting_reader import WaitingReader
from app.streaming.session import Session
from app.streaming.session_group import SessionGroup


class JsonResponse:
    """Reads the session to its end, and sends one JSON body.

    Log-probabilities can make the body tens of megabytes. It is sent as the client reads it, in pieces that take a
    millisecond each; the server encodes one piece per iteration of the loop, however many responses end at once. The
    unsent data counts as pending bytes: of log-probabilities the packed rows, a seventh of their JSON.

    `headers` are those of this answer beside those of all bodies.
    """

    def __init__(
        self,
        context: ApiContext,
        request: ApiRequest,
        session: Session | SessionGroup | WaitingReader,
        wire: Wire,
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._session = session
        self._wire = wire
        self._ignored = request.ignored
        self._headers = headers
        self._piece_lock = context.piece_lock
        self._pending = context.streams.pending_of(request.request.account)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the response.

        Raises:
            ClientDisconnect: the client disconnected; the request is aborted, unless its answer is kept.
        """
        body = None
        try:
            async with self._session:
                await run_until_disconnect(receive, self._keep())
                failure = self._session.failure
                access_record(scope).reason = failure.code if failure else self._session.end_reason
                if failure is None:
                    assert self._session.usage is not None
                    body = self._wire.whole(self._session.ends, self._session.usage, self._session.span())
                    if body.num_bytes is not None:
                        await run_until_disconnect(receive, self._send_in_pieces(body.pieces, body.num_bytes, send))
                        return
        finally:
            access_record(scope).figures = figures_of(self._session)
        if failure is not None:
            await error_response(failure, scope)(scope, receive, send)
        else:
            assert body is not None
            await self._send(b"".join(body.pieces), send)

    async def _keep(self) -> None:
        """Read the session to its end."""
        async for events in self._session:
            for event in events:
                if isinstance(event, TokenDelta | PromptScored):
                    self._wire.keep(event)

    async def _send(self, body: bytes, send: Send) -> None:
        headers = {"content-type": "application/json", "content-length": str(len(body)), **self._headers}
        with self._pending.counted(len(body)):
            await send(start_message(self._ignored, headers))
            await send({"type": "http.response.body", "body": body})

    async def _send_in_pieces(self, pieces: Iterator[bytes], num_bytes: int, send: Send) -> None:
        with self._pending.counted(num_bytes):
            await send(start_message(self._ignored, {"content-type": "application/json", **self._headers}))
            is_complete = False
            while not is_complete:
                piece = await next_piece(pieces, self._piece_lock)
                is_complete = piece is None
                if piece or is_complete:
                    await send({"type": "http.response.body", "body": piece or b"", "more_body": not is_complete})
