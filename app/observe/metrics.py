"""Prometheus metrics of one server: vLLM's names for metrics that vLLM has, `quire_...` for the others.

Values are observed once per engine step or once per ended choice, never per token, and only on the event loop.
Tokens are counted when they are generated, so those of requests that never finish count too.

For a request with several choices, success is counted per choice, an abort or a failure once per request. The
histograms of ended requests are in `ended_requests`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric

from app.config.settings import CacheConfig
from app.contract.engine_status import EngineStats, StepReport
from app.contract.errors import DeadlineExceeded, EngineFailed, QueueTimeout
from app.contract.events import Embedded, Finished, FinishReason, RequestFailed, TokenDelta
from app.observe.ended_requests import INTER_TOKEN_S, EndedRequests
from app.observe.engine_counts import cache_info, engine_counts
from app.observe.families import Families, Histogram

STEP_TOKENS = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)


class _StreamCounts(Protocol):
    """Counts of all streams of a server (see Streams)."""

    @property
    def pending_bytes(self) -> int: ...
    @property
    def num_merged(self) -> int: ...
    @property
    def slow_readers(self) -> Mapping[str, int]: ...


class _GrammarCounts(Protocol):
    """Counts of the compiled grammars of a server (see GrammarCache)."""

    @property
    def num_bytes(self) -> int: ...
    @property
    def failures(self) -> Mapping[str, int]: ...
    @property
    def process_bytes(self) -> int: ...
    @property
    def num_processes(self) -> int: ...
    def take_compile_seconds(self) -> list[float]: ...


class _LogCounts(Protocol):
    """Counts of a server's log (see LogWriter)."""

    @property
    def num_dropped(self) -> int: ...


class Metrics:
    """The metrics of one server, with a registry of their own; `cache` adds the cache's settings. Loop only.

    Attributes:
        loop_lag_s: the delays of a timer of the event loop, in seconds; the watchdog adds them.
    """

    def __init__(self, model_name: str, cache: CacheConfig | None = None) -> None:
        self._cache = cache
        self._labels = {"model_name": model_name, "engine": "0"}
        self._families = Families(self._labels)
        self._stats = EngineStats()
        self._streams: _StreamCounts | None = None
        self._grammars: _GrammarCounts | None = None
        self._log: _LogCounts | None = None
        self._mask_s = Histogram(
            "quire_grammar_mask_seconds",
            "Seconds that a step took to find the tokens that grammars allow, of steps with grammars.",
            INTER_TOKEN_S,
        )
        self._compile_s = Histogram(
            "quire_grammar_compile_seconds", "Seconds to compile a grammar, accepted or not.", INTER_TOKEN_S
        )
        self._generation_tokens = 0
        self._num_embeddings = self._num_embedded_tokens = 0
        self._counted: dict[str, dict[int, int]] = {}  # open request -> choice -> generated tokens counted so far
        self._successes: dict[str, int] = {FinishReason.STOP: 0, FinishReason.LENGTH: 0}
        self._aborts: dict[str, int] = dict.fromkeys(
            (FinishReason.CANCELLED, EngineFailed.code, QueueTimeout.code, DeadlineExceeded.code), 0
        )
        self._ended = EndedRequests()
        self._inter_token_s = Histogram(
            "vllm:inter_token_latency_seconds",
            "Seconds of the step that generated a token, observed once per token.",
            INTER_TOKEN_S,
        )
        self._iteration_tokens = Histogram(
            "vllm:iteration_tokens_total",
            "Tokens of a step: prompt tokens of requests that got their first token, and generated tokens.",
            STEP_TOKENS,
        )
        self._step_s = Histogram("quire_step_seconds", "Duration of an engine step in seconds.", INTER_TOKEN_S)
        self._prefill_tokens, self._decode_tokens = (
            Histogram("quire_step_tokens", "Tokens computed by a step, by kind.", STEP_TOKENS) for _ in range(2)
        )
        self.loop_lag_s = Histogram(
            "quire_event_loop_lag_seconds", "Delay of a timer of the event loop in seconds.", INTER_TOKEN_S
        )
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def observe(self, report: StepReport) -> None:
        """Add the report of one step."""
        num_before = self._generation_tokens + self._stats.num_prompt_tokens
        self._stats = report.stats
        if report.num_prefill_tokens or report.num_decode_tokens:
            self._step_s.observe(report.duration_s)
            self._prefill_tokens.observe(report.num_prefill_tokens)
            self._decode_tokens.observe(report.num_decode_tokens)
        if report.num_decode_tokens:
            self._inter_token_s.observe(report.duration_s, report.num_decode_tokens)
        for seconds in report.mask_s:
            self._mask_s.observe(seconds)
        cancelled = set()
        for event in report.events:
            if isinstance(event, TokenDelta):
                self._count_generated(event.request_id, event.choice, event.first + len(event.token_ids) - 1)
            elif isinstance(event, Finished):
                self._count_generated(event.request_id, event.choice, event.usage.completion_tokens)
                self._forget(event)
                if event.reason is FinishReason.CANCELLED:
                    cancelled.add(event.request_id)
                else:
                    self._successes[event.reason] = self._successes.get(event.reason, 0) + 1
                    self._ended.observe(event)
            elif isinstance(event, Embedded):
                self._num_embeddings += 1
                self._num_embedded_tokens += event.num_tokens
            elif isinstance(event, RequestFailed):
                self._counted.pop(event.request_id, None)
                self._aborts[event.error.code] = self._aborts.get(event.error.code, 0) + 1
        self._aborts[FinishReason.CANCELLED] += len(cancelled)
        num_tokens = self._generation_tokens + report.stats.num_prompt_tokens - num_before
        if num_tokens > 0:
            self._iteration_tokens.observe(num_tokens)

    def count_streams(self, streams: _StreamCounts) -> None:
        """Include the counts of `streams`."""
        self._streams = streams

    def count_grammars(self, grammars: _GrammarCounts) -> None:
        """Include the counts of `grammars`."""
        self._grammars = grammars

    def count_log(self, log: _LogCounts) -> None:
        """Include the counts of `log`."""
        self._log = log

    def render(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self._registry)

    def collect(self) -> Iterable[Metric]:
        """Yield every metric family (prometheus_client's protocol)."""
        make = self._families
        yield from engine_counts(self._stats, make)
        if self._cache is not None:
            yield cache_info(self._cache, self._stats, self._labels)
        yield make.counter("vllm:generation_tokens", "Tokens generated.", self._generation_tokens)
        yield make.counter("vllm:request_success", "Choices that finished.", self._successes, by="finished_reason")
        yield make.counter(
            "quire_embeddings",
            "Texts that became vectors; `vllm:request_success` does not count them.",
            self._num_embeddings,
        )
        yield make.counter(
            "quire_embedding_tokens",
            "Prompt tokens of texts that became vectors; `vllm:prompt_tokens` counts them too.",
            self._num_embedded_tokens,
        )
        yield make.counter(
            "quire_requests_aborted",
            "Requests that did not finish, by reason: cancelled (the client left or did not read), or an error code.",
            self._aborts,
            by="reason",
        )
        if self._streams is not None:
            yield make.gauge(
                "quire_stream_pending_bytes",
                "Bytes of tokens, text, log-probabilities and non-streamed responses pending for slow clients.",
                self._streams.pending_bytes,
            )
            yield make.counter(
                "quire_deltas_merged",
                "Deltas merged into an earlier one that was still pending.",
                self._streams.num_merged,
            )
            yield make.counter(
                "quire_slow_consumers",
                "Slow clients, by action: paused, coalesced or dropped as requested, or cut (disconnected because the "
                "client read nothing for `--stall-timeout`).",
                self._streams.slow_readers,
                by="action",
            )
        yield make.counter(
            "quire_log_records_dropped",
            "Log records that were dropped because nothing read the log in time.",
            0 if self._log is None else self._log.num_dropped,
        )
        if self._grammars is not None:
            yield from self._grammar_families(self._grammars)
        yield from self._ended.families(self._labels)
        for histogram in (self._inter_token_s, self._iteration_tokens, self._step_s, self.loop_lag_s):
            yield histogram.family(self._labels)
        step_tokens = self._prefill_tokens.family({**self._labels, "kind": "prefill"})
        self._decode_tokens.add_to(step_tokens, {**self._labels, "kind": "decode"})
        yield step_tokens

    def _grammar_families(self, grammars: _GrammarCounts) -> Iterable[Metric]:
        for seconds in grammars.take_compile_seconds():
            self._compile_s.observe(seconds)
        yield self._families.gauge(
            "quire_grammar_cache_bytes", "Estimated bytes of the compiled grammars.", grammars.num_bytes
        )
        yield self._families.gauge(
            "quire_grammar_process_bytes",
            "Bytes of the processes that try grammars and find masks; 0 before the first grammar.",
            grammars.process_bytes,
        )
        yield self._families.counter(
            "quire_grammar_processes",
            "Processes that were started to find masks: one with the first grammar, and one more for each that ended.",
            grammars.num_processes,
        )
        yield self._families.counter(
            "quire_grammar_failures",
            "Requests that failed because of their grammar: refused before they began; while they were answered, "
            "without an allowed token (no_token) or beyond a limit.",
            grammars.failures,
            by="reason",
        )
        yield self._compile_s.family(self._labels)
        yield self._mask_s.family(self._labels)

    def _count_generated(self, request_id: str, choice: int, num_generated: int) -> None:
        """Count new tokens: deltas are held back where a stop string may begin, and do not contain an EOS token."""
        choices = self._counted.setdefault(request_id, {})
        self._generation_tokens += num_generated - choices.get(choice, 0)
        choices[choice] = num_generated

    def _forget(self, event: Finished) -> None:
        choices = self._counted[event.request_id]
        del choices[event.choice]
        if not choices:
            del self._counted[event.request_id]
