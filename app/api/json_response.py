"""Sends one session to an HTTP client as one JSON body, when all choices have ended."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.types import Receive, Scope, Send

from app.api.access_log import access_record, figures_of
from app.api.choice_format import ChoiceFormat
from app.api.connection import run_until_disconnect
from app.api.context import ApiContext
from app.api.error_response import error_response
from app.api.parse_request import ApiRequest
from app.api.wire_format import JsonChoice, json_pieces, start_message
from app.contract.events import TokenDelta
from app.contract.packed_logprobs import Logprobs
from app.streaming.session import Session


class JsonResponse:
    """Reads the session to its end, and sends one JSON body.

    Log-probabilities can make the body tens of megabytes. It is sent as the client reads it, in pieces that take a
    millisecond each; the server encodes one piece per iteration of the loop, however many responses end at once. The
    unsent data counts as pending bytes: of log-probabilities the packed rows, a seventh of their JSON.
    """

    def __init__(self, context: ApiContext, request: ApiRequest, session: Session, format: ChoiceFormat) -> None:
        self._session = session
        self._request = request
        self._format = format
        self._piece_lock = context.piece_lock
        self._pending = context.streams.pending_of(request.request.account)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the response.

        Raises:
            ClientDisconnect: the client disconnected; the request is aborted.
        """
        try:
            async with self._session:
                choices = await run_until_disconnect(receive, self._collect())
                failure = self._session.failure
                access_record(scope).reason = failure.code if failure else self._session.end_reason
                if failure is None and self._request.request.params.logprobs is not None:
                    await run_until_disconnect(receive, self._send_in_pieces(choices, send))
                    return
        finally:
            access_record(scope).figures = figures_of(self._session)
        if failure is not None:
            await error_response(failure)(scope, receive, send)
        else:
            body = b"".join(self._pieces(choices))
            headers = {"content-type": "application/json", "content-length": str(len(body))}
            with self._counted(len(body)):
                await send(start_message(self._request, headers))
                await send({"type": "http.response.body", "body": body})

    async def _collect(self) -> list[JsonChoice]:
        """Read the session to its end, and return the choices that have ended."""
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
        return [
            JsonChoice(
                "".join(texts[choice]),
                None if params.logprobs is None else Logprobs(num_top, bytes(rows[choice])),
                reason,
            )
            for choice, reason in sorted(session.finish_reasons.items())
        ]

    def _pieces(self, choices: list[JsonChoice]) -> Iterator[bytes]:
        assert self._session.usage is not None
        return json_pieces(self._request, self._format, choices, self._session.usage)

    async def _send_in_pieces(self, choices: list[JsonChoice], send: Send) -> None:
        pieces = self._pieces(choices)
        with self._counted(sum(len(one.logprobs.rows) for one in choices if one.logprobs is not None)):
            await send(start_message(self._request, {"content-type": "application/json"}))
            is_complete = False
            while not is_complete:
                async with self._piece_lock:
                    piece = next(pieces, None)
                    await asyncio.sleep(0)
                is_complete = piece is None
                if piece or is_complete:
                    await send({"type": "http.response.body", "body": piece or b"", "more_body": not is_complete})

    @contextmanager
    def _counted(self, num_bytes: int) -> Iterator[None]:
        """Count `num_bytes` as pending within the block."""
        self._pending.num_bytes += num_bytes
        try:
            yield
        finally:
            self._pending.num_bytes -= num_bytes
