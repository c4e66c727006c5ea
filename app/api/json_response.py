"""Answers one HTTP request with one JSON body at the end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from app.api.access_log import access_record, figures_of
from app.api.disconnect import run_until_gone
from app.api.error_response import error_response
from app.api.wire_format import WholeChoice, WireFormat
from app.contract.errors import Draining, ErrorInfo
from app.contract.events import FinishReason, TokenDelta, Usage
from app.contract.packed_logprobs import Logprobs
from app.streaming.flow.pending_bytes import AccountBytes
from app.streaming.session import Session


def failure_of(session: Session) -> ErrorInfo | None:
    """Return why a session that was read to its end has no answer, or None if it has one."""
    if FinishReason.CANCELLED in session.finish_reasons.values():
        return Draining("The server was stopped before the answer was complete.").info()
    return session.error


class JsonResponse:
    """Answers with one JSON body at the end.

    Log-probabilities can make it tens of megabytes: it is written out as the client takes it, in pieces that take a
    millisecond each. `turn` is the server's, so that there is one of them in each turn of the loop, however many
    answers end at once. What waits for the client is counted in `pending`: of log-probabilities the packed rows, a
    seventh of their JSON.
    """

    def __init__(
        self,
        session: Session,
        format: WireFormat,
        headers: dict[str, str],
        *,
        turn: asyncio.Lock,
        pending: AccountBytes,
    ) -> None:
        self._session = session
        self._format = format
        self._headers = headers
        self._turn = turn
        self._pending = pending

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the answer.

        Raises:
            ClientDisconnect: the client went away; the request is aborted.
        """
        try:
            async with self._session:
                found = await run_until_gone(receive, self._collect(scope))
                if not isinstance(found, Response) and self._session.request.params.logprobs is not None:
                    await run_until_gone(receive, self._send_in_pieces(*found, send))
                    return
        finally:
            access_record(scope).figures = figures_of(self._session)
        if isinstance(found, Response):
            await found(scope, receive, send)
        else:
            await self._send_at_once(b"".join(self._format.whole(*found)), send)

    async def _collect(self, scope: Scope) -> Response | tuple[list[WholeChoice], Usage]:
        """Read the answer to its end; return it, or the response that says why there is none."""
        session, params = self._session, self._session.request.params
        texts: list[list[str]] = [[] for _ in range(params.n)]
        rows = [bytearray() for _ in range(params.n)]
        num_top = 0
        async for events in session:
            for event in events:
                if isinstance(event, TokenDelta):
                    texts[event.choice].append(event.text)
                    if event.logprobs is not None:
                        num_top = event.logprobs.num_top
                        rows[event.choice] += event.logprobs.rows
        failure = failure_of(session)
        if failure is not None:
            access_record(scope).reason = failure.code
            return error_response(failure)
        access_record(scope).reason = session.ending
        choices = [
            WholeChoice(
                "".join(texts[choice]),
                None if params.logprobs is None else Logprobs(num_top, bytes(rows[choice])),
                session.finish_reasons[choice],
            )
            for choice in range(params.n)
        ]
        assert session.usage is not None
        return choices, session.usage

    async def _send_at_once(self, body: bytes, send: Send) -> None:
        with self._waiting(len(body)):
            await send(self._start({"content-length": str(len(body))}))
            await send({"type": "http.response.body", "body": body})

    async def _send_in_pieces(self, choices: list[WholeChoice], usage: Usage, send: Send) -> None:
        pieces = self._format.whole(choices, usage)
        with self._waiting(sum(len(one.logprobs.rows) for one in choices if one.logprobs is not None)):
            await send(self._start({}))
            is_complete = False
            while not is_complete:
                async with self._turn:
                    piece = next(pieces, None)
                    await asyncio.sleep(0)
                is_complete = piece is None
                if piece or is_complete:
                    await send({"type": "http.response.body", "body": piece or b"", "more_body": not is_complete})

    def _start(self, headers: dict[str, str]) -> Message:
        fields = {"content-type": "application/json", **headers, **self._headers}
        named = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in fields.items()]
        return {"type": "http.response.start", "status": 200, "headers": named}

    @contextmanager
    def _waiting(self, num_bytes: int) -> Iterator[None]:
        """So much waits for the client within the block."""
        self._pending.num_bytes += num_bytes
        try:
            yield
        finally:
            self._pending.num_bytes -= num_bytes
