"""Sends one session to an HTTP client as one JSON body, when all choices have ended."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

from starlette.types import Receive, Scope, Send

from app.api.http.access_log import access_record, figures_of
from app.api.http.connection import run_until_disconnect
from app.api.http.context import ApiContext
from app.api.http.error_response import error_response
from app.api.wire.api_request import ApiRequest
from app.api.wire.choice_format import ChoiceFormat
from app.api.wire.json_line import next_piece
from app.api.wire.wire_format import JsonChoice, json_pieces, start_message
from app.contract.events import PromptScored, TokenDelta
from app.contract.packed_logprobs import Logprobs
from app.streaming.session import Session
from app.streaming.session_group import SessionGroup


class JsonResponse:
    """Reads the session to its end, and sends one JSON body.

    Log-probabilities can make the body tens of megabytes. It is sent as the client reads it, in pieces that take a
    millisecond each; the server encodes one piece per iteration of the loop, however many responses end at once. The
    unsent data counts as pending bytes: of log-probabilities the packed rows, a seventh of their JSON.
    """

    def __init__(
        self, context: ApiContext, request: ApiRequest, session: Session | SessionGroup, format: ChoiceFormat
    ) -> None:
        self._session = session
        self._request = request
        self._format = format
        self._answer = request.new_parsers()
        self._piece_lock = context.piece_lock
        self._scores: dict[int, Logprobs] = {}  # of the prompts, by their first choice
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
                if failure is None and self._is_long:
                    await run_until_disconnect(receive, self._send_in_pieces(choices, send))
                    return
        finally:
            access_record(scope).figures = figures_of(self._session)
        if failure is not None:
            await error_response(failure)(scope, receive, send)
        else:
            body = b"".join(self._pieces(choices))
            headers = {"content-type": "application/json", "content-length": str(len(body))}
            with self._pending.counted(len(body)):
                await send(start_message(self._request, headers))
                await send({"type": "http.response.body", "body": body})

    @property
    def _has_logprobs(self) -> bool:
        return self._request.request.params.logprobs is not None

    @property
    def _is_long(self) -> bool:
        """Whether the body has more than text."""
        return self._has_logprobs or self._request.has_token_ids or self._request.shown.has_logprobs

    async def _collect(self) -> list[JsonChoice]:
        """Read the session to its end, and return the choices that have ended."""
        session, num_choices = self._session, self._request.num_choices
        echoes = [self._request.echo_of(choice) for choice in range(num_choices)]
        texts = [[] if echo is None else [echo.text] for echo in echoes]
        rows = [bytearray() for _ in range(num_choices)]
        token_ids = [array("i") for _ in range(num_choices if self._request.has_token_ids else 0)]
        num_top = 0
        async for events in session:
            for event in events:
                if isinstance(event, PromptScored):
                    self._scores[event.choice] = event.logprobs
                elif isinstance(event, TokenDelta):
                    if self._answer is None:
                        texts[event.choice].append(event.text)
                    else:
                        self._answer.keep(event)
                    if token_ids:
                        token_ids[event.choice].extend(event.token_ids)
                    if event.logprobs is not None:
                        num_top = event.logprobs.num_top
                        rows[event.choice] += event.logprobs.rows
        return [
            JsonChoice(
                self._message(choice, "".join(texts[choice])),
                self._logprobs(choice, Logprobs(num_top, bytes(rows[choice]))) if self._has_logprobs else None,
                end if self._answer is None else self._answer.end_of(choice, end),
                token_ids[choice] if token_ids else None,
                self._scores_of(choice) if self._request.shown.has_logprobs else None,
            )
            for choice, end in sorted(session.ends.items())
        ]

    def _message(self, choice: int, text: str) -> dict[str, object]:
        return self._format.text_fields(text) if self._answer is None else self._answer.message(choice)

    def _logprobs(self, choice: int, generated: Logprobs) -> Logprobs:
        """Return the log-probabilities of a choice: those of its generated tokens, after those of an echoed prompt."""
        if not self._request.shown.echoes:
            return generated
        scores = self._scores_of(choice)
        return Logprobs(scores.num_top if scores.rows else generated.num_top, scores.rows + generated.rows)

    def _scores_of(self, choice: int) -> Logprobs:
        """Return the log-probabilities of the prompt of a choice; none if it was cancelled before it had any."""
        return self._scores.get(self._request.first_of_prompt(choice), Logprobs(0))

    def _pieces(self, choices: list[JsonChoice]) -> Iterator[bytes]:
        usage, request = self._session.usage, self._request
        assert usage is not None
        num_reasoning = None if self._answer is None else self._answer.reasoning_tokens
        return json_pieces(request, self._format, choices, usage, self._session.span(), num_reasoning)

    async def _send_in_pieces(self, choices: list[JsonChoice], send: Send) -> None:
        pieces = self._pieces(choices)
        num_bytes = sum(one.num_bytes for one in choices) + sum(len(scores.rows) for scores in self._scores.values())
        with self._pending.counted(num_bytes):
            await send(start_message(self._request, {"content-type": "application/json"}))
            is_complete = False
            while not is_complete:
                piece = await next_piece(pieces, self._piece_lock)
                is_complete = piece is None
                if piece or is_complete:
                    await send({"type": "http.response.body", "body": piece or b"", "more_body": not is_complete})
