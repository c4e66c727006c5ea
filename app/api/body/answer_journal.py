"""Kept answers in the journal: how they begin there, and how the next process goes on with them.

The journal has the body of a request, not what became of it: the same route reads it again, so that tools, grammars and
the wire of the answer are the same again. The requests then get the ids and seeds that they had.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from typing import NamedTuple, TypeVar
from zlib import crc32

import numpy as np
import orjson

from app.api.body.json_body import parse_object
from app.api.body.new_answer import fingerprint_of
from app.api.body.parse_request import Parser, on_thread, parse_answer
from app.api.http.accounts import Sender
from app.api.http.context import ApiContext, Asked
from app.api.wire.api_request import ApiRequest
from app.api.wire.resumable_answer import MakeWire, Resumable, keep_answer
from app.contract.engine_status import ModelInfo
from app.contract.errors import (
    Draining,
    EngineFailed,
    ModelLoading,
    Overloaded,
    QuireError,
    RateLimitExceeded,
    UnsupportedParameter,
)
from app.contract.model_print import model_print
from app.contract.requests import EngineRequest
from app.journal.entries import Head
from app.journal.store import JournalStore, StoredStream
from app.observe.families import Histogram
from app.observe.metrics import Metrics
from app.observe.shown_id import shown_id
from app.runtime.clock import monotonic
from app.streaming.kept import told_entries
from app.streaming.kept.idempotency_keys import KEY_BYTES, KeyName
from app.streaming.kept.journal_counts import JournalCounts
from app.streaming.kept.journaling import Journaling
from app.streaming.kept.live_stream import LiveStream, State

MAX_ATTEMPTS = 3  # to begin an answer again, without a new token: it may be what ends the process
_POLL_S = 0.05
_log = logging.getLogger("quire.journal")
Result = TypeVar("Result")


def _same(request: ApiRequest) -> ApiRequest:
    return request


class Route(NamedTuple):
    """How bodies of a route are read, and how its answers are written.

    `as_before` returns a request that was read again, and has its first id, time and model, with the same in what the
    wire needs of its body.
    """

    parser: Parser[ApiRequest]
    make_wire: MakeWire
    as_before: Callable[[ApiRequest], ApiRequest] = _same


class AnswerJournal:
    """The journal of a server's kept answers. Loop only.

    Attributes:
        journaling: records what they tell.
    """

    def __init__(self, context: ApiContext, store: JournalStore, routes: Mapping[str, Route], metrics: Metrics) -> None:
        self.journaling = Journaling(store)
        self._context = context
        self._salt = store.salt
        self._stored = store.take_stored()
        self._routes = routes
        self._metrics = metrics
        self._are_restored = asyncio.Event()
        self._has_failed = False  # the process ends before they can be read
        self._task: asyncio.Task[None] | None = None

    @property
    def counts(self) -> JournalCounts:
        """The counts that the metrics show."""
        return self.journaling.counts

    @property
    def commit_s(self) -> Histogram:
        """The times of its commits, which they show too."""
        return self.journaling.commit_s

    def start(self) -> None:
        """Begin to record, and to restore what an earlier process has left. Call it once, on the loop."""
        self.journaling.start()
        self._task = asyncio.get_running_loop().create_task(self._restore())

    async def close(self) -> None:
        """Record what waits, and end. Idempotent."""
        if self._task is not None:
            self._task.cancel()
        await self.journaling.close()

    async def flush(self) -> None:
        """Wait until all that was told so far is recorded, or nothing can be. Cancel-safe."""
        await self.journaling.flush()

    async def restored(self) -> None:
        """Wait until the answers of an earlier process can be read. Cancel-safe.

        Raises:
            Draining: this process ends before; the next one has them.
        """
        await self._are_restored.wait()
        if self._has_failed:
            raise Draining("The server ends before it has read the answers of an earlier process; try again later.")

    def begin(self, stream: LiveStream, asked: Asked, body: bytes) -> None:
        """Record a new answer, and all that it tells from now on."""
        request, info = Resumable.of(stream).request, self._context.engine.model_info()
        seeds = tuple(each.params.seed or 0 for each in stream.requests)
        head = Head(
            id=stream.id,
            owner=self._owner(asked.sender.tenant),
            path=asked.route,
            body=body,
            always_streams=asked.always_streams,
            key=asked.key,
            created=request.created,
            seeds=seeds,
            prompts=tuple(map(_prompt_print, stream.requests)),
            ttl_s=stream.ttl_s,
            model=model_print(info, self._context.config),
            max_tokens=tuple(each.params.max_tokens or 0 for each in stream.requests),
            model_name=request.model,
            vocabulary=_vocabulary_print(info),
            is_parsed=request.answer is not None,
            arrived=time.time() - (monotonic() - stream.requests[0].arrival_time),
            kernels=info.kernels,
        )
        self.journaling.begin(stream, head)

    # --- What an earlier process has left ------------------------------------------------------------------------

    async def _restore(self) -> None:
        try:
            await self._restore_all()
        except QuireError as error:  # the engine has failed: the next process restores them
            _log.warning("the answers of the last process cannot go on: %s", error.message)
        finally:
            self._has_failed = not self._are_restored.is_set()
            self._are_restored.set()

    async def _restore_all(self) -> None:
        if not self._stored:
            self._are_restored.set()
            return
        model = model_print(await self._model_info(), self._context.config)
        unfinished: list[tuple[LiveStream, int]] = []
        for stored in self._stored:
            stream = await self._restore_if_possible(stored, model)
            if stream is None:
                self.journaling.drop(stored.no)
                self.journaling.counts.restored["dropped"] += 1
            elif stream.is_over:
                self.journaling.counts.restored["replayed"] += 1
            else:
                unfinished.append((stream, stored.attempts))
        if num_dropped := self.journaling.counts.restored["dropped"]:
            answers = "1 answer" if num_dropped == 1 else f"{num_dropped} answers"
            _log.warning(
                "%s of earlier processes cannot be kept: of another model, context or key, or no room", answers
            )
        self._stored = []
        self.journaling.are_taken.set()
        self._are_restored.set()
        # What may have ended the process runs when all others have ended, one after the other.
        begun: list[LiveStream] = []
        for stream, attempts in sorted(unfinished, key=lambda pair: pair[1] + 1 >= MAX_ATTEMPTS):
            if attempts + 1 >= MAX_ATTEMPTS:
                await self._until_over(begun, stream.requests[0].deadline)
            await self._go_on(stream, attempts + 1)
            begun.append(stream)

    async def _restore_if_possible(self, stored: StoredStream, model: bytes) -> LiveStream | None:
        """Return the stream of an answer as far as it was told; None if it cannot be kept any longer. One that cannot
        be read holds up no others.

        Raises:
            EngineFailed, ModelLoading, Draining: the process ends.
        """
        try:
            return await self._restore_one(stored, model)
        except (EngineFailed, ModelLoading, Draining):
            raise
        except QuireError as error:
            _log.warning("answer %s cannot go on after the restart: %s", shown_id(stored.head.id), error.message)
        except Exception:
            _log.exception("answer %s cannot go on after the restart", shown_id(stored.head.id))
        return None

    async def _restore_one(self, stored: StoredStream, model: bytes) -> LiveStream | None:
        head, route, sender = stored.head, self._routes.get(stored.head.path), self._sender(stored.head.owner)
        is_over = stored.told.state != State.RUNNING
        if route is None or sender is None or (head.model != model and not is_over):
            return None
        body = await self._body_of(head, sender)
        parsing = partial(parse_answer, body, self._context, route.parser, sender, always_streams=head.always_streams)
        request = await _when_free(parsing)
        with request.released_on_error():
            request = route.as_before(_as_before(request, head))
            if is_over:
                self._check_readable(request, head)
            elif tuple(map(_prompt_print, request.requests)) != head.prompts:
                request.release()
                return None
            num_bytes = len(head.body)
            kept_bytes = num_bytes + (KEY_BYTES if head.key else 0)
            stream = keep_answer(
                self._context,
                request,
                route.make_wire,
                num_body_bytes=num_bytes,
                kept_bytes=kept_bytes,
                ttl_s=head.ttl_s,
            )
        if stream is None:
            request.release()
            return None
        try:
            told_entries.restore(stream, stored.told)
            if stream.keeper is not None and head.key is not None:
                await self._keep_key(stream, KeyName(sender.account, head.path, head.key), head.body)
        except BaseException:
            request.release()
            if stream.keeper is not None:
                stream.keeper.forget(stream)
            raise
        if stream.keeper is None:  # there was no room for what it has told
            return None
        if stream.num_told and not stream.is_over and not self._has_same_tokens(head):
            stream.is_recovered = True
        self.journaling.go_on(stream, stored.no, head, stored.attempts)
        return stream

    async def _body_of(self, head: Head, sender: Sender) -> bytes:
        """Return the body of an answer as this server can read it: one that names another model names this one's."""
        if head.model_name in ("", self._context.model_name):
            return head.body
        renaming = partial(_with_model, name=self._context.model_name)
        return await _when_free(partial(on_thread, self._context, len(head.body), sender.account, renaming, head.body))

    def _check_readable(self, request: ApiRequest, head: Head) -> None:
        """Check that an answer of another model can be told again: its tokens cannot be read with this one's.

        Raises:
            UnsupportedParameter: the answer is more than its text.
        """
        if head.vocabulary in (b"", _vocabulary_print(self._context.engine.model_info())):
            return
        is_parsed = head.is_parsed or request.answer is not None
        if is_parsed or request.request.params.logprobs is not None or request.has_token_ids:
            raise UnsupportedParameter("It is of another model, and has tokens, reasoning or calls beside its text.")

    def _has_same_tokens(self, head: Head) -> bool:
        """Return whether this process chooses the tokens that the one before would have chosen."""
        kernels = self._context.engine.model_info().kernels
        return kernels is not None and kernels == head.kernels

    async def _keep_key(self, stream: LiveStream, name: KeyName, body: bytes) -> None:
        keys = self._context.kept.keys
        fingerprint = await _when_free(partial(on_thread, self._context, len(body), name.account, fingerprint_of, body))
        async with keys.claimed(name, fingerprint):
            keys.keep(name, stream)

    async def _go_on(self, stream: LiveStream, attempt: int) -> None:
        """Submit the requests of an answer again; one that was tried too often without a new token fails."""
        if stream.is_over or stream.keeper is None:
            return
        self.journaling.note_attempt(stream, attempt)
        if attempt > MAX_ATTEMPTS:
            self.journaling.counts.restored["failed"] += 1
            stream.fail(EngineFailed("The answer was begun again three times, and the server ended each time.").info())
            return
        await self.journaling.flush()
        while not stream.is_over:
            try:
                submitted = stream.submit_again()
            except (Overloaded, RateLimitExceeded):
                await asyncio.sleep(_POLL_S)
            except QuireError:  # the engine ends; the next process goes on
                return
            else:
                for request in submitted:
                    self._metrics.go_on(request)
                self.journaling.counts.restored["continued"] += 1
                return

    async def _until_over(self, streams: Sequence[LiveStream], deadline: float | None) -> None:
        """Wait until all streams have ended, or the deadline of the one behind them, which the engine then ends."""
        while not all(stream.is_over for stream in streams) and (deadline is None or monotonic() < deadline):
            await self.flush()
            await asyncio.sleep(_POLL_S)

    async def _model_info(self) -> ModelInfo:
        while True:
            try:
                return self._context.engine.model_info()
            except ModelLoading:
                await asyncio.sleep(_POLL_S)

    def _owner(self, tenant: str | None) -> bytes:
        key = None if tenant is None else self._context.keys.digest_of(tenant)
        return b"" if key is None else blake2b(key, key=self._salt, digest_size=16).digest()

    def _sender(self, owner: bytes) -> Sender | None:
        """Return who owns an answer; None if the key is none of this server's any longer."""
        if not owner:
            return None if self._context.keys.names else Sender()
        names = [name for name in self._context.keys.names if self._owner(name) == owner]
        return Sender(names[0], names[0]) if names else None


async def _when_free(call: Callable[[], Awaitable[Result]]) -> Result:
    """Return the result of `call`, as soon as it is not rejected because of load. Cancel-safe if `call` is."""
    while True:
        try:
            return await call()
        except Overloaded:
            await asyncio.sleep(_POLL_S)


def _with_model(body: bytes, *, name: str) -> bytes:
    """Return a body that names the model `name`. Any thread."""
    return orjson.dumps({**parse_object(body), "model": name})


def _as_before(request: ApiRequest, head: Head) -> ApiRequest:
    """Return a request that was read again with the ids, seeds, lengths, times and name of its model that it had.

    It was accepted to be answered, so no limit on its waiting is left.
    """
    age_s = max(0.0, time.time() - (head.arrived or head.created))  # the clock may have been set back
    came = monotonic() - age_s
    lengths: tuple[int | None, ...] = head.max_tokens or tuple(each.params.max_tokens for each in request.requests)
    requests = [
        replace(
            each,
            id=each.id.replace(request.id, head.id),
            params=replace(each.params, seed=seed, max_tokens=max_tokens),
            arrival_time=came,
            start_deadline=None,
            deadline=None if each.deadline is None else came + each.deadline - each.arrival_time,
        )
        for each, seed, max_tokens in zip(request.requests, head.seeds, lengths, strict=True)
    ]
    return replace(
        request,
        request=requests[0],
        others=tuple(requests[1:]),
        created=int(head.created),
        model=head.model_name or request.model,
    )


def _vocabulary_print(info: ModelInfo) -> bytes:
    """Return a digest that is equal where the same tokens have the same text, reasoning and calls."""
    what = (info.revision, info.vocab_size, info.eos_token_ids)
    return blake2b(repr(what).encode(), digest_size=16).digest()


def _prompt_print(request: EngineRequest) -> int:
    return crc32(np.asarray(request.prompt_token_ids, np.int64).tobytes())
