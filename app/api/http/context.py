"""What all routes of one server share. Made once by `create_app`, reached as `request.app.state.context`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from starlette.requests import HTTPConnection

from app.api.http.accounts import ApiKeys, Sender
from app.api.http.byte_budget import ByteBudget
from app.api.http.byte_shares import ByteShares
from app.api.http.first_prompts import FirstPrompts
from app.checkpoint.names import served_name
from app.config.settings import Config
from app.contract.errors import ModelNotFound
from app.contract.grammar import Grammar
from app.contract.ports import EngineClient
from app.observe.families import Histogram
from app.streaming.background import Background
from app.streaming.drain import Drain
from app.streaming.heap_trimmer import HeapTrimmer
from app.streaming.kept.journal_counts import JournalCounts
from app.streaming.kept.kept_streams import KeptStreams
from app.streaming.kept.live_stream import LiveStream
from app.streaming.live.live_room import LiveRoom
from app.streaming.streams import Streams
from app.text.entry.frontend import TextFrontend
from app.text.grammar.cache import GrammarCache
from app.text.grammar.grammar_entries import Lease

MAX_LONG_WAITING = 16  # long bodies: each holds up to --max-request-bytes


@dataclass(frozen=True, slots=True)
class StreamTimers:
    """Seconds without data after which a stream sends a heartbeat.

    Before the first token `waiting_s`, and the first heartbeat sends the response's headers; between tokens
    `generating_s`.
    """

    waiting_s: float = 5.0
    generating_s: float = 15.0


class GrammarLeases(Protocol):
    """Leases clients' grammars: `body.grammar_trials`."""

    async def lease(self, grammar: Grammar, account: str) -> Lease:
        """Return a lease of a grammar for an account. Cancel-safe."""

    def close(self) -> None:
        """Lease no more grammars. Idempotent."""


class Asked(Protocol):
    """A request for a new answer, as far as a journal records it beside its body: `body.new_answer.NewAnswer`."""

    @property
    def sender(self) -> Sender:
        """The client that has sent it."""

    @property
    def route(self) -> str:
        """The path that it came to."""

    @property
    def key(self) -> str | None:
        """The idempotency key, if there is one."""

    @property
    def always_streams(self) -> bool:
        """Whether its answer is a stream, whatever the body says."""


class Journal(Protocol):
    """Keeps answers beyond the end of the process: `body.answer_journal`."""

    @property
    def counts(self) -> JournalCounts:
        """The counts that the metrics show."""

    @property
    def commit_s(self) -> Histogram:
        """The times of its commits, which they show too."""

    def start(self) -> None:
        """Begin to record, and to restore what an earlier process has left. Call it once, on the loop."""

    def begin(self, stream: LiveStream, asked: Asked, body: bytes) -> None:
        """Record a new answer, and all that it tells from now on."""

    async def restored(self) -> None:
        """Wait until the answers of an earlier process can be read. Cancel-safe."""

    async def flush(self) -> None:
        """Wait until all that was told so far is recorded, or nothing can be. Cancel-safe."""

    async def close(self) -> None:
        """Record what waits, and end. Idempotent."""


_ANY_NAME = "*"  # as an alias of the model


class ApiContext:
    """The parts of one server. Loop only; any thread may read the attributes.

    Attributes:
        engine: the engine client.
        config: all settings.
        model_name: the name the API gives the model.
        keys: the API keys, and the accounts of requests.
        text: tokenizer and chat template.
        first_prompts: says that one does not fit.
        grammars: the compiled grammars of answers, which the engine reads.
        grammar_trials: tries grammars in processes of their own, and leases them.
        threads: the threads that parse and tokenize request bodies.
        long_thread: the thread for long bodies, so that short ones do not wait for them.
        heap: returns to the system what these, streams that are kept no longer, and bodies and messages have freed.
        timers: heartbeat intervals of streams.
        streams: the open streams.
        kept: the resumable ones, also those that have ended.
        remembered: the memory of what connections remember of their responses.
        received: the memory of large bodies and messages that are not complete.
        journal: keeps them beyond the end of the process, if there is one.
        live: those who watch the engine; None with `--live-view off`.
        piece_lock: lets one part of a large JSON response be encoded per iteration of the loop, server-wide.
        drain: the graceful shutdown.
    """

    def __init__(
        self,
        engine: EngineClient,
        config: Config,
        text: TextFrontend,
        timers: StreamTimers,
        grammars: GrammarCache,
        make_trials: Callable[[GrammarCache, Background], GrammarLeases],
    ) -> None:
        self.engine = engine
        self.config = config
        self.model_name = served_name(config.model)
        self._aliases = frozenset(config.server.model_alias)
        self.keys = ApiKeys(config.server)
        self.text = text
        self.first_prompts = FirstPrompts(config.model)
        self.grammars = grammars
        self.threads = Background("text")
        self.grammar_trials = make_trials(grammars, self.threads)
        self.long_thread = Background("long-text", num_threads=1, max_queue=MAX_LONG_WAITING)
        self.heap = HeapTrimmer(self.long_thread)
        self.timers = timers
        self.streams = Streams(config.server.max_pending_bytes)
        self.kept = KeptStreams(config.server.resume_memory, on_freed=self.heap.note_large)
        self.remembered = ByteBudget(config.server.resume_memory)
        self.received = ByteShares(config.server.max_request_bytes, on_freed=self.heap.note_large)
        self.journal: Journal | None = None
        self.live: LiveRoom | None = None
        self.piece_lock = asyncio.Lock()
        self.drain = Drain(engine, self.streams)

    def check_model(self, model: str | None) -> str:
        """Return the served name for a request's `model`; None and the aliases mean the served one. Any thread.

        Raises:
            ModelNotFound: the model is another one.
        """
        if model is None or model == self.model_name or not self._aliases.isdisjoint((model, _ANY_NAME)):
            return self.model_name
        raise ModelNotFound(f"The model {model[:100]!r} is not served here; use {self.model_name!r}.", param="model")

    def close(self) -> None:
        """Reject calls that wait for a thread, and end the processes that try grammars. Idempotent."""
        self.grammar_trials.close()
        if self.live is not None:
            self.live.close()
        self.heap.close()
        self.threads.close()
        self.long_thread.close()


def context_of(connection: HTTPConnection) -> ApiContext:
    """Return the context of the server that received a request or WebSocket."""
    context: ApiContext = connection.app.state.context
    return context
