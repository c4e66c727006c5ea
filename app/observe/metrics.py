"""Prometheus metrics of one server: vLLM's names for metrics that vLLM has, `quire_...` for the others.

Values are observed once per engine step or once per ended choice, never per token, and only on the event loop.
Tokens are counted when they are generated, so those of requests that never finish count too.

For a request with several choices, success is counted per choice, an abort or a failure once per request. What other
parts count comes from them when the metrics are read (`Metrics.include`, `include_histogram`); the histograms of ended
requests are in `ended_requests`, those of steps in `step_histograms`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import Metric

from app.config.cache_config import CacheConfig
from app.contract.counts import Counts, MetricFamily, counter
from app.contract.engine_status import EngineStats, StepReport
from app.contract.errors import DeadlineExceeded, EngineFailed, QueueTimeout
from app.contract.events import Embedded, Finished, FinishReason, RequestFailed, TokenDelta
from app.contract.requests import EngineRequest
from app.observe.ended_requests import INTER_TOKEN_S, EndedRequests
from app.observe.families import ENGINE, Families, Histogram
from app.observe.recent_counts import RecentCounts, Sample
from app.observe.step_histograms import StepHistograms


@dataclass(slots=True)
class AnswerCounts(Counts):
    """The tokens and ends that the events of all steps report."""

    num_tokens: int = counter("vllm:generation_tokens", "Tokens generated.")
    successes: dict[str, float] = counter(
        "vllm:request_success",
        "Choices that finished.",
        by=("finished_reason",),
        start={FinishReason.STOP: 0, FinishReason.LENGTH: 0},
    )
    num_embeddings: int = counter(
        "quire_embeddings", "Texts that became vectors; `vllm:request_success` does not count them."
    )
    num_embedded_tokens: int = counter(
        "quire_embedding_tokens", "Prompt tokens of texts that became vectors; `vllm:prompt_tokens` counts them too."
    )
    aborts: dict[str, float] = counter(
        "quire_requests_aborted",
        "Requests that did not finish, by reason: cancelled (the client left or did not read), or an error code.",
        by=("reason",),
        start=dict.fromkeys((FinishReason.CANCELLED, EngineFailed.code, QueueTimeout.code, DeadlineExceeded.code), 0),
    )


class _Grammars(Protocol):
    """The compiled grammars of a server (see GrammarCache)."""

    @property
    def counts(self) -> Counts: ...
    def take_compile_seconds(self) -> list[float]: ...


class Metrics:
    """The metrics of one server, with a registry of their own; `cache` adds the cache's settings. Loop only.

    Attributes:
        steps: the histograms of steps.
        recent: how the counters were up to a minute ago.
    """

    def __init__(self, model_name: str, cache: CacheConfig | None = None) -> None:
        self._cache = cache
        self._labels = {"model_name": model_name, ENGINE: "0"}
        self._stats = EngineStats()
        self._answers = AnswerCounts()
        self._counted: dict[str, dict[int, int]] = {}  # open request -> choice -> generated tokens counted so far
        self._ended = EndedRequests()
        self.steps = StepHistograms()
        self.recent = RecentCounts(self.sample)
        self._others: list[Callable[[], Counts]] = []
        self._histograms: list[Histogram] = []
        self._grammars: _Grammars | None = None
        self._mask_s = Histogram(
            "quire_grammar_mask_seconds",
            "Seconds that a step took to find the tokens that grammars allow, of steps with grammars.",
            INTER_TOKEN_S,
        )
        self._compile_s = Histogram(
            "quire_grammar_compile_seconds", "Seconds to compile a grammar, accepted or not.", INTER_TOKEN_S
        )
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)  # reads /proc: 0.1 ms; without /proc it has no families

    def include(self, counts: Callable[[], Counts]) -> None:
        """Include what `counts` returns when the metrics are read."""
        self._others.append(counts)

    def include_histogram(self, histogram: Histogram) -> None:
        """Include a histogram that another part observes."""
        self._histograms.append(histogram)

    def include_grammars(self, grammars: _Grammars) -> None:
        """Include the counts of `grammars`, and the times that they take."""
        self._grammars = grammars
        self.include(lambda: grammars.counts)

    def go_on(self, request: EngineRequest) -> None:
        """Count the new tokens and the end of a request that an earlier process has begun; call it when it is
        submitted. No times and lengths: they would be those of both processes, and of the time between.
        """
        told = {choice: len(one.token_ids) for choice, one in enumerate(request.told) if not one.has_ended}
        if told:
            self._counted[request.id] = told
        self._ended.leave_out(request.id, len(told) or request.params.n)

    def observe(self, report: StepReport) -> None:
        """Add the report of one step."""
        self.recent.before_report()
        answers = self._answers
        num_before = answers.num_tokens + self._stats.prompts.num_tokens
        self._stats = report.stats
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
                    self._ended.forget(event.request_id)
                else:
                    answers.successes[event.reason] = answers.successes.get(event.reason, 0) + 1
                    self._ended.observe(event)
            elif isinstance(event, Embedded):
                answers.num_embeddings += 1
                answers.num_embedded_tokens += event.num_tokens
            elif isinstance(event, RequestFailed):
                self._counted.pop(event.request_id, None)
                self._ended.forget(event.request_id)
                answers.aborts[event.error.code] = answers.aborts.get(event.error.code, 0) + 1
        answers.aborts[FinishReason.CANCELLED] += len(cancelled)
        self.steps.observe(report, answers.num_tokens + report.stats.prompts.num_tokens - num_before)

    @property
    def first_token_s(self) -> Histogram:
        """The histogram of the times to the first token."""
        return self._ended.first_token_s

    def sample(self) -> Sample:
        """Return the counters that rates and percentiles of the last minute are made of."""
        starts, steps = self._stats.starts, self.steps
        return Sample(
            self._answers.num_tokens,
            self._stats.prompts.num_tokens,
            starts.num_prefix_queries,
            starts.num_prefix_hits,
            sum(steps.step_s.counts),
            steps.step_s.sum,
            self._stats.budget.num_over_target,
            self.first_token_s.counts,
            steps.inter_token_s.counts,
        )

    def render(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self._registry)

    def collect(self) -> Iterable[Metric]:
        """Yield every metric family (prometheus_client's protocol)."""
        yield from Families(self._labels).of([self._stats, self._answers, *(counts() for counts in self._others)])
        if self._cache is not None:
            yield self._cache_info(self._cache)
        yield from self._ended.families(self._labels)
        yield from self.steps.families(self._labels)
        for histogram in self._histograms:
            yield histogram.family(self._labels)
        if self._grammars is not None:
            for seconds in self._grammars.take_compile_seconds():
                self._compile_s.observe(seconds)
            yield self._compile_s.family(self._labels)
            yield self._mask_s.family(self._labels)

    def _cache_info(self, cache: CacheConfig) -> Metric:
        """Return the settings of the KV cache as the labels of a gauge that is 1, under vLLM's names for them."""
        blocks = self._stats.blocks
        values = {
            **self._labels,
            "block_size": blocks.num_capacity_tokens // blocks.num_blocks if blocks.num_blocks else cache.block_size,
            "cache_dtype": cache.kv_cache_dtype,
            "enable_prefix_caching": cache.enable_prefix_caching,
            "gpu_memory_utilization": cache.gpu_memory_utilization,
            "num_gpu_blocks": blocks.num_blocks,
            "swap_space": cache.swap_space,
        }
        families = Families({name: str(value) for name, value in values.items()})
        return families.family(MetricFamily("vllm:cache_config_info", "gauge", "The KV cache's settings."), 1)

    def _count_generated(self, request_id: str, choice: int, num_generated: int) -> None:
        """Count new tokens: deltas are held back where a stop string may begin, and do not contain an EOS token."""
        choices = self._counted.setdefault(request_id, {})
        self._answers.num_tokens += num_generated - choices.get(choice, 0)
        choices[choice] = num_generated

    def _forget(self, event: Finished) -> None:
        choices = self._counted[event.request_id]
        del choices[event.choice]
        if not choices:
            del self._counted[event.request_id]
