"""What all routes of one server share. Made once by `create_app`, reached as `request.app.state.context`."""

from __future__ import annotations

import hashlib
import hmac
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection

from app.checkpoint import EMBEDDED, resolve
from app.config import Config, ModelConfig
from app.errors import EngineFailed, ModelLoading, ModelNotFound, QuireError
from app.messages import EngineClient, EngineHealth, EngineState
from app.observe.metrics import Metrics
from app.streaming.background import Background
from app.text.chat_template import ChatTemplate
from app.text.placeholder import load_tokenizer
from app.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class StreamTimers:
    """Seconds of silence after which a stream shows that it lives.

    Before the first token `waiting_s` (a stream that has not begun, begins); between tokens `generating_s`.
    """

    waiting_s: float = 5.0
    generating_s: float = 15.0


class TextSide(NamedTuple):
    """What turns prompts into token ids; a model without a chat template does completions only."""

    tokenizer: Tokenizer
    chat_template: ChatTemplate | None


class ApiContext:
    """Engine, settings, executor, tokenizer, metrics and keys of one server. Loop only, but for plain attributes.

    Attributes:
        engine: the engine client.
        config: all settings.
        model_name: the name the API gives the model.
        metrics: the server's metrics.
        timers: heartbeat intervals of streams.
        background: the executor for rendering and tokenizing.
    """

    def __init__(self, engine: EngineClient, config: Config, metrics: Metrics, timers: StreamTimers) -> None:
        self.engine = engine
        self.config = config
        self.model_name = served_model_name(config.model)
        self.metrics = metrics
        self.timers = timers
        self.background = Background("text")
        self._text: TextSide | None = None
        self._text_error: QuireError | None = None
        self._key_digests = [_digest(key) for key in config.server.api_key]

    async def load_text(self) -> None:
        """Load tokenizer and chat template in the executor; a failure is kept and told to whoever asks."""
        try:
            self._text = await self.background.run(_load_text, self.config.model)
        except QuireError as error:
            self._text_error = error
            logging.getLogger(__name__).error("the tokenizer cannot be loaded: %s", error)

    def text(self) -> TextSide:
        """Return tokenizer and chat template.

        Raises:
            ModelLoading: they are not loaded yet.
            EngineFailed: they cannot be loaded.
        """
        if self._text is not None:
            return self._text
        if self._text_error is not None:
            raise EngineFailed(self._text_error.message)
        raise ModelLoading("The tokenizer is loading; try again in a moment.")

    def health(self) -> EngineHealth:
        """Return the state of the whole: ready only when the engine and the text side are."""
        health = self.engine.health()
        if health.state is not EngineState.READY or self._text is not None:
            return health
        if self._text_error is not None:
            return EngineHealth(EngineState.FAILED, message=self._text_error.message)
        return EngineHealth(EngineState.LOADING, health.progress)

    def check_key(self, key: str | None) -> bool:
        """Whether `key` opens this server; any does while none is set. Which keys there are, no timing tells."""
        if not self._key_digests:
            return True
        if key is None:
            return False
        digest = _digest(key)
        return sum(hmac.compare_digest(digest, known) for known in self._key_digests) > 0

    def check_headers(self, headers: Headers) -> bool:
        """Whether a request's `Authorization: Bearer` or `x-api-key` opens this server; each may be sent once."""
        bearers, keys = headers.getlist("authorization"), headers.getlist("x-api-key")
        if len(bearers) > 1 or len(keys) > 1:
            return not self._key_digests
        keys += [value.removeprefix("Bearer ") if value.startswith("Bearer ") else "" for value in bearers]
        return all(self.check_key(key) for key in keys) if keys else self.check_key(None)

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


def served_model_name(model: ModelConfig) -> str:
    """Return the name the API gives a model: as set, else `guide`, else the folder's last name."""
    if model.served_model_name is not None:
        return model.served_model_name
    return EMBEDDED if model.model == EMBEDDED else Path(model.model).expanduser().resolve().name


def _load_text(model: ModelConfig) -> TextSide:
    folder = resolve(model.model)
    tokenizer = load_tokenizer(folder, model.load_format)
    override = None if model.chat_template is None else Path(model.chat_template)
    return TextSide(tokenizer, ChatTemplate.load(folder, tokenizer, override))


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
