"""How an answer begins, on all transports: as a new one, or as that of an equal request with the same key."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256

import orjson
from starlette.requests import Request
from starlette.types import ASGIApp

from app.api.body.json_body import parse_object
from app.api.body.parse_request import Parser, on_thread, parse_answer, read_post
from app.api.http.accounts import Sender
from app.api.http.context import ApiContext, context_of
from app.api.wire.api_request import ApiRequest
from app.api.wire.framing import choose_framing
from app.api.wire.response_head import ignored_header
from app.api.wire.resumable_answer import MakeWire, Resumable, keep_answer
from app.api.wire.stream_response import make_response, resumed
from app.contract.errors import InvalidValue
from app.streaming.kept.idempotency_keys import KEY_BYTES, KEY_RULE, KeyName, is_idempotency_key
from app.streaming.kept.live_stream import TTL_S, LiveStream

KEY_HEADER = "idempotency-key"
RESUME_HEADER = "x-quire-resume"
_RESUME_VALUES = {"1": True, "true": True, "0": False, "false": False}
REPLAYED = {"idempotent-replayed": "true"}


@dataclass(frozen=True, slots=True)
class BegunAnswer:
    """A checked request; with a stream it is submitted, and the answer is kept there.

    `is_replayed` says that the stream was that of an earlier request.
    """

    request: ApiRequest
    stream: LiveStream | None = None
    is_replayed: bool = False


def is_stream(request: ApiRequest) -> bool:
    """Return whether the answer to a request is a stream, which a reader can come back to."""
    return request.stream


@dataclass(frozen=True, slots=True)
class NewAnswer:
    """A request whose body is not read yet, as its transport knows it.

    Attributes:
        context: the server's.
        parser: checks the body.
        make_wire: returns the wire of the answer.
        route: where the body came to: the scope of its idempotency key.
        sender: who has sent it.
        ttl_s: the seconds that the answer is kept without a reader, 0 if it is only kept under a key.
        key: the idempotency key, if there is one.
        always_streams: see `RequestContext`.
        is_kept: returns whether the answer to a checked request is kept without a key, if `ttl_s` is not 0.
    """

    context: ApiContext
    parser: Parser[ApiRequest]
    make_wire: MakeWire
    route: str
    sender: Sender
    ttl_s: float = 0
    key: str | None = None
    always_streams: bool = False
    is_kept: Callable[[ApiRequest], bool] = is_stream

    async def begin(self, body: bytes) -> BegunAnswer:
        """Check a body, and submit its requests if the answer is kept. Cancel-safe.

        The caller lets the session of an answer that is not kept release the request's lease, or releases it.

        Raises:
            QuireError: see `parse_answer`, `IdempotencyKeys.claimed` and `LiveStream.start`.
        """
        if self.key is None:
            return await self._recorded(await self._begin_new(body))
        keys, name = self.context.kept.keys, KeyName(self.sender.account, self.route, self.key)
        if self.context.journal is not None:
            self.context.engine.model_info()  # while it loads, the request is rejected as every other one
            await self.context.journal.restored()  # an answer of the earlier process may have this key
        # Parsed on a thread, as for a request that is answered.
        fingerprint = await on_thread(self.context, len(body), self.sender.account, fingerprint_of, body)
        async with keys.claimed(name, fingerprint) as known:
            if known.stream is not None:
                return BegunAnswer(Resumable.of(known.stream).request, known.stream, is_replayed=True)
            begun = await self._begin_new(body)
            if begun.stream is not None:
                keys.keep(name, begun.stream)
            return await self._recorded(begun)

    async def _begin_new(self, body: bytes) -> BegunAnswer:
        request = await parse_answer(body, self.context, self.parser, self.sender, always_streams=self.always_streams)
        with request.released_on_error():
            stream = self._keep(request, len(body))
            if stream is not None:
                if self.context.journal is not None:
                    self.context.journal.begin(stream, self, body)
                stream.start()
            return BegunAnswer(request, stream)

    async def _recorded(self, begun: BegunAnswer) -> BegunAnswer:
        """Return a begun answer when it is recorded, before anybody is told that it is there. Cancel-safe: a kept
        stream goes on, under its key and with its lease. Its prompt is computed meanwhile.
        """
        if begun.stream is not None and self.context.journal is not None:
            await self.context.journal.flush()
        return begun

    def _keep(self, request: ApiRequest, num_body_bytes: int) -> LiveStream | None:
        if self.key is None and not (self.ttl_s and self.is_kept(request)):
            return None
        return keep_answer(
            self.context,
            request,
            self.make_wire,
            num_body_bytes=num_body_bytes,
            kept_bytes=(KEY_BYTES if self.key else 0) + (num_body_bytes if self.context.journal else 0),
            ttl_s=self.ttl_s or TTL_S,
        )


async def answer_post(http: Request, parser: Parser[ApiRequest], make_wire: MakeWire) -> ASGIApp:
    """Return the app that answers a POST; one whose answer is kept says so with its headers."""
    context = context_of(http)
    new = NewAnswer(
        context,
        parser,
        make_wire,
        route=http.scope["path"],
        sender=context.keys.sender_of(http),
        ttl_s=TTL_S if _asks_to_resume(http) else 0,
        key=_key_in(http),
    )
    begun = await new.begin(await read_post(http))
    framing = choose_framing(http.headers)
    if begun.stream is None:
        with begun.request.released_on_error():
            return make_response(context, begun.request, make_wire(begun.request, framing))
    headers = {**ignored_header(begun.request.ignored), **(REPLAYED if begun.is_replayed else {})}
    return resumed(context, begun.stream, framing, headers=headers)


def _asks_to_resume(http: Request) -> bool:
    """Return whether the client of a request may come back to its answer.

    Raises:
        InvalidValue: the header that says so comes several times, or says neither yes nor no.
    """
    values = http.headers.getlist(RESUME_HEADER)
    if not values:
        return False
    wanted = _RESUME_VALUES.get(values[0].strip().lower()) if len(values) == 1 else None
    if wanted is None:
        raise InvalidValue(
            f"The header X-Quire-Resume is {', '.join(values)[:100]!r}; send it once, as 1 or true for an answer that "
            "can be resumed, or as 0 or false for one that cannot.",
            param="X-Quire-Resume",
        )
    return wanted


def _key_in(http: Request) -> str | None:
    """Return the idempotency key of a request.

    Raises:
        InvalidValue: there are several, or it is no key.
    """
    keys = http.headers.getlist(KEY_HEADER)
    if not keys:
        return None
    if len(keys) > 1 or not is_idempotency_key(keys[0]):
        raise InvalidValue(f"The header Idempotency-Key must be sent once, and be {KEY_RULE}.", param="Idempotency-Key")
    return keys[0]


def fingerprint_of(body: bytes) -> bytes:
    """Return a digest that is the same for bodies of the same JSON, however they are written. Any thread.

    Raises:
        JsonInvalid: see `parse_object`.
    """
    return sha256(orjson.dumps(parse_object(body), option=orjson.OPT_SORT_KEYS)).digest()
