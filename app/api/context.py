"""What all routes of one server share. Made once by `create_app`, reached as `request.app.state.context`."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from starlette.requests import HTTPConnection

from app.api.drain import Drain
from app.api.keys import ApiKeys
from app.api.model_text import ModelText
from app.api.shared import Shared
from app.config.settings import Config, served_name
from app.contract.engine_status import EngineHealth
from app.contract.errors import ModelNotFound
from app.contract.ports import EngineClient
from app.observe.metrics import Metrics
from app.streaming.streams import Streams
from app.text.frontend import TextFrontend


@dataclass(frozen=True, slots=True)
class StreamTimers:
    """Seconds of silence after which a stream shows that it lives.

    Before the first token `waiting_s` (a stream that has not begun, begins); between tokens `generating_s`.
    """

    waiting_s: float = 5.0
    generating_s: float = 15.0


class ApiContext:
    """The parts of one server. Loop only, but for plain attributes.

    Attributes:
        engine: the engine client.
        config: all settings.
        model_name: the name the API gives the model.
        keys: who may ask.
        text: tokenizer and chat template.
        metrics_page: what `/metrics` answers.
        timers: heartbeat intervals of streams.
        streams: the streams that are open.
        writing_out: held by who writes out a piece of a large answer, for one turn of the loop.
        drain: the server's end.
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
        self.keys = ApiKeys(config.server)
        self.text = ModelText(config.model, text)
        self.metrics_page = Shared(metrics.render)
        self.timers = timers
        self.streams = Streams(config.server.max_pending_bytes)
        self.writing_out = asyncio.Lock()
        self.drain = Drain(engine, self.streams)
        metrics.count_streams(self.streams)

    def health(self) -> EngineHealth:
        """Return the state of the whole: ready only when engine and text are, failed when one of them is."""
        return self.text.add_to(self.engine.health())

    def check_model(self, model: str | None) -> str:
        """Return the served name for a request's `model`; None means it. Any thread.

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
