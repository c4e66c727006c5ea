"""What all routes of one server share. Made once by `create_app`, reached as `request.app.state.context`."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import re
from dataclasses import dataclass, replace

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection

from app.api.accounts import Sender
from app.api.drain import Drain
from app.api.shared import Shared
from app.checkpoint.folder import resolve
from app.config.settings import Config, ModelConfig, served_name, tenants
from app.contract.engine_status import EngineHealth, EngineState
from app.contract.errors import NOT_OURS, EngineFailed, ModelLoading, ModelNotFound, QuireError
from app.contract.ports import EngineClient
from app.observe.metrics import Metrics
from app.streaming.background import Background
from app.streaming.streams import Streams
from app.text.frontend import TextFrontend

# The scheme has no case, and any blanks may follow it (RFC 9110, section 11).
_BEARER = re.compile(r"[ \t]*bearer[ \t]+(.*?)[ \t]*", re.IGNORECASE | re.DOTALL)
MAX_LONG_WAITING = 16  # long bodies: each holds up to --max-request-bytes


@dataclass(frozen=True, slots=True)
class StreamTimers:
    """Seconds of silence after which a stream shows that it lives.

    Before the first token `waiting_s` (a stream that has not begun, begins); between tokens `generating_s`.
    """

    waiting_s: float = 5.0
    generating_s: float = 15.0


class ApiContext:
    """Engine, settings, executor, tokenizer, metrics and keys of one server. Loop only, but for plain attributes.

    Attributes:
        engine: the engine client.
        config: all settings.
        model_name: the name the API gives the model.
        metrics: the server's metrics.
        metrics_page: what `/metrics` answers.
        timers: heartbeat intervals of streams.
        background: the executor for rendering and tokenizing.
        long_background: the same for long bodies, one after another.
        streams: the streams that are open.
        writing_out: held by who writes out a piece of a large answer, for one turn of the loop.
        drain: the polite end of the server.
    """

    def __init__(
        self,
        engine: EngineClient,
        config: Config,
        metrics: Metrics,
        timers: StreamTimers,
        text: TextFrontend | None = None,
    ) -> None:
        self.engine = engine
        self.config = config
        self.model_name = served_name(config.model)
        self.metrics = metrics
        self.metrics_page = Shared(metrics.render)
        self.timers = timers
        self.background = Background("text")
        self.long_background = Background("long-text", num_threads=1, max_queue=MAX_LONG_WAITING)
        self.streams = Streams(config.server.max_pending_bytes)
        self.writing_out = asyncio.Lock()
        metrics.count_streams(self.streams)
        self.drain = Drain(engine, self.streams)
        self._text = text
        self._text_failure: str | None = None
        self._tenants = tenants(config.server)
        self._key_digests = [_digest(key) for key in config.server.api_key]

    async def load_text(self) -> None:
        """Load tokenizer and chat template in the executor, if they were not given; a failure is kept and told.

        Cancel-safe: a cancelled load leaves the text side as it was.
        """
        if self._text is not None:
            return
        log = logging.getLogger(__name__)
        try:
            self._text = await self.background.run(_load_text, self.config.model)
        except (asyncio.CancelledError, *NOT_OURS):
            raise
        except QuireError as error:
            self._text_failure = error.message
            log.error("the tokenizer cannot be loaded: %s", error)
        except BaseException as error:  # whatever it is, nobody may wait for a text side that never comes
            self._text_failure = "The tokenizer cannot be loaded; the server's log says why."
            log.error("the tokenizer cannot be loaded: %s", error, exc_info=error)

    def text(self) -> TextFrontend:
        """Return tokenizer and chat template.

        Raises:
            ModelLoading: they are not loaded yet.
            EngineFailed: they cannot be loaded.
        """
        if self._text is not None:
            return self._text
        if self._text_failure is not None:
            raise EngineFailed(self._text_failure)
        raise ModelLoading("The tokenizer is loading; try again in a moment.")

    def health(self) -> EngineHealth:
        """Return the state of the whole: ready only when the engine and the text side are, failed when one of them."""
        health = self.engine.health()
        if self._text_failure is not None and health.state is not EngineState.FAILED:
            return replace(health, state=EngineState.FAILED, message=self._text_failure)
        if self._text is None and health.state is EngineState.READY:
            return replace(health, state=EngineState.LOADING)
        return health

    def key_name(self, key: str | None) -> str | None:
        """Return the name of one of this server's keys (see `tenants`), None for any other.

        Which keys there are, no timing tells.
        """
        digest = _digest(key or "")
        found = [hmac.compare_digest(digest, known) for known in self._key_digests]
        return self._tenants[found.index(True)] if key is not None and any(found) else None

    def check_key(self, key: str | None) -> bool:
        """Whether `key` opens this server; any does while none is set."""
        return not self._key_digests or self.key_name(key) is not None

    def check_headers(self, headers: Headers) -> bool:
        """Whether a request's `Authorization: Bearer` or `x-api-key` opens this server; each may be sent once."""
        if len(headers.getlist("authorization")) > 1 or len(headers.getlist("x-api-key")) > 1:
            return not self._key_digests
        keys = _keys(headers)
        return all(map(self.check_key, keys)) if keys else self.check_key(None)

    def sender_of(self, connection: HTTPConnection) -> Sender:
        """Return who sent what came on `connection`, which was let in by its headers."""
        return Sender.of(self.tenant_of(connection.headers), connection)

    def tenant_of(self, headers: Headers) -> str | None:
        """Return the name of the key that let a request in (see `check_headers`); None while no key is set."""
        return self.key_name(next(iter(_keys(headers)), None))

    def check_model(self, model: str | None) -> str:
        """Return the served name for a request's `model`; None means it.

        Raises:
            ModelNotFound: it is another one.
        """
        if model is None or model == self.model_name:
            return self.model_name
        raise ModelNotFound(f"The model {model[:100]!r} is not served here; use {self.model_name!r}.", param="model")


def context_of(connection: HTTPConnection) -> ApiContext:
    """Return the context of the server that a request or WebSocket came to."""
    context = connection.app.state.context
    assert isinstance(context, ApiContext)
    return context


def _load_text(settings: ModelConfig) -> TextFrontend:
    text = TextFrontend.load(settings, resolve(settings.model))
    _ = text.tokenizer.max_piece_chars  # worked out now: with a large vocabulary it would hold up the first requests
    return text


def _keys(headers: Headers) -> list[str]:
    """The keys that a request brings; a header of another kind than ours brings an empty one."""
    return [*map(_bearer_key, headers.getlist("authorization")), *headers.getlist("x-api-key")]


def _bearer_key(value: str) -> str:
    match = _BEARER.fullmatch(value)
    return match[1] if match else ""


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
