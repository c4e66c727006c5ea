"""Answers one HTTP request with one JSON body at the end."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.api.answer_format import AnswerFormat, WholeChoice
from app.api.disconnect import run_until_gone
from app.api.error_response import error_response, note_reason
from app.api.stream_log import note_answer
from app.errors import Draining, ErrorInfo
from app.logprobs import Logprobs
from app.messages import FinishReason, TokenDelta
from app.streaming.pending import PendingBytes
from app.streaming.session import Session


def failure_of(session: Session) -> ErrorInfo | None:
    """Return why a session that was read to its end has no answer, or None if it has one."""
    if FinishReason.CANCELLED in session.finish_reasons.values():
        return Draining("The server was stopped before the answer was complete.").info()
    return session.error


class Whole:
    """Answers with one JSON body at the end.

    Log-probabilities can make it tens of megabytes: it is written out in pieces that take a millisecond each. `turn` is
    the server's, so that there is one of them in each turn of the loop, however many answers end at once. What waits
    for the client is counted in `pending` from its first piece on.
    """

    def __init__(
        self,
        session: Session,
        format: AnswerFormat,
        headers: dict[str, str],
        *,
        turn: asyncio.Lock,
        pending: PendingBytes,
    ) -> None:
        self._session = session
        self._format = format
        self._headers = headers
        self._turn = turn
        self._pending = pending
        self._num_pending = 0  # of this answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the answer.

        Raises:
            ClientDisconnect: the client went away; the request is aborted.
            Overloaded: too much waits for clients by now; what the engine has made is thrown away.
        """
        try:
            try:
                async with self._session:
                    found = await run_until_gone(receive, self._collect(scope))
            finally:
                note_answer(scope, self._session)
            if isinstance(found, Response):
                await found(scope, receive, send)
            else:
                await self._send(found, send)
        finally:
            self._count(-self._num_pending)

    async def _collect(self, scope: Scope) -> Response | deque[bytes]:
        """Read the answer to its end; return its body in pieces, or the response that says why there is none."""
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
            note_reason(scope, failure.code)
            return error_response(failure)
        note_reason(scope, session.ending)
        choices = [
            WholeChoice(
                "".join(texts[choice]),
                None if params.logprobs is None else Logprobs(num_top, bytes(rows[choice])),
                session.finish_reasons[choice],
            )
            for choice in range(params.n)
        ]
        assert session.usage is not None
        pieces = self._format.whole(choices, session.usage)
        if params.logprobs is not None:
            return await self._write_out(pieces)
        body = b"".join(pieces)
        self._count(len(body))
        return deque([body])

    async def _write_out(self, pieces: Iterator[bytes]) -> deque[bytes]:
        # Hundreds may have been let in before the first of them was not read.
        self._pending.check()
        body: deque[bytes] = deque()
        is_complete = False
        while not is_complete:
            async with self._turn:
                piece = next(pieces, None)
                await asyncio.sleep(0)
            is_complete = piece is None
            if piece:
                body.append(piece)
                self._count(len(piece))
        return body

    async def _send(self, body: deque[bytes], send: Send) -> None:
        fields = {"content-type": "application/json", "content-length": str(sum(map(len, body))), **self._headers}
        headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in fields.items()]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        while body:
            piece = body.popleft()
            await send({"type": "http.response.body", "body": piece, "more_body": bool(body)})
            self._count(-len(piece))

    def _count(self, num_bytes: int) -> None:
        self._num_pending += num_bytes
        self._pending.num_bytes += num_bytes
