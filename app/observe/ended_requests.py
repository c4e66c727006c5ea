"""Histograms of ended requests and choices: counts, lengths, times. Names and meanings are vLLM's."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import Metric

from app.contract.events import Finished, FinishReason
from app.observe.families import Histogram

# vLLM's buckets, with lower ones added: a token of a small model takes less time than vLLM's first bound.
_SHORT = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5)
INTER_TOKEN_S = (*_SHORT, 10, 20, 40, 80)
FIRST_TOKEN_S = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
    1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560,
)  # fmt: skip
REQUEST_S = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60,
    120, 240, 480, 960, 1920, 7680,
)  # fmt: skip
TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000, 200000)
CHOICES = (1, 2, 5, 10, 20)
PREEMPTIONS = (0, 1, 2, 5, 10, 20, 50)


class EndedRequests:
    """Histograms of finished requests. Loop only.

    Values that the choices of a request share (prompt, parameters, queue time, first token) are observed once, at the
    end of choice 0; output tokens and times are observed for each choice.
    """

    def __init__(self) -> None:
        self._open: dict[str, list[int]] = {}  # generated tokens of ended choices, of requests with further ones
        self._left_out: dict[str, int] = {}  # requests that are not observed, and their open choices
        self._queue_s = Histogram(
            "vllm:request_queue_time_seconds", "Seconds from arrival to the first step.", REQUEST_S
        )
        self.first_token_s = Histogram(
            "vllm:time_to_first_token_seconds", "Seconds from arrival to the first token.", FIRST_TOKEN_S
        )
        self._prefill_s = Histogram(
            "vllm:request_prefill_time_seconds", "Seconds from the first step to the first token.", REQUEST_S
        )
        self._decode_s = Histogram(
            "vllm:request_decode_time_seconds", "Seconds from the first token to the end of a choice.", REQUEST_S
        )
        self._inference_s = Histogram(
            "vllm:request_inference_time_seconds", "Seconds from the first step to the end of a choice.", REQUEST_S
        )
        self._total_s = Histogram(
            "vllm:e2e_request_latency_seconds", "Seconds from arrival to the end of a choice.", REQUEST_S
        )
        self._per_token_s = Histogram(
            "vllm:request_time_per_output_token_seconds", "Mean seconds per token after the first.", INTER_TOKEN_S
        )
        self._prompt = Histogram("vllm:request_prompt_tokens", "Prompt tokens of ended requests.", TOKENS)
        self._generation = Histogram("vllm:request_generation_tokens", "Generated tokens of ended choices.", TOKENS)
        self._computed = Histogram(
            "vllm:request_prefill_kv_computed_tokens",
            "Prompt tokens of ended requests that were computed, and not found in the prefix cache.",
            TOKENS,
        )
        self._longest = Histogram(
            "vllm:request_max_num_generation_tokens",
            "Generated tokens of the longest choice of ended requests.",
            TOKENS,
        )
        self._preemptions = Histogram("vllm:request_num_preemptions", "Preemptions of ended requests.", PREEMPTIONS)
        self._n = Histogram("vllm:request_params_n", "`n` of ended requests.", CHOICES)
        self._max_tokens = Histogram(
            "vllm:request_params_max_tokens", "`max_tokens` of ended requests: given, or as many as fit.", TOKENS
        )

    def leave_out(self, request_id: str, num_choices: int) -> None:
        """Do not observe a request, of which so many choices are open."""
        self._left_out[request_id] = num_choices

    def observe(self, event: Finished) -> None:
        """Add the end of a choice that was not cancelled."""
        if event.request_id in self._left_out:
            self._left_out[event.request_id] -= 1
            if not self._left_out[event.request_id]:
                del self._left_out[event.request_id]
            return
        usage, timings = event.usage, event.timings
        self._generation.observe(usage.completion_tokens)
        self._observe_longest(event)
        self._total_s.observe(timings.total_s)
        self._decode_s.observe(timings.total_s - timings.first_token_s)
        self._inference_s.observe(timings.total_s - timings.queue_s)
        if usage.completion_tokens > 1:
            self._per_token_s.observe((timings.total_s - timings.first_token_s) / (usage.completion_tokens - 1))
        if event.choice == 0:
            self._prompt.observe(usage.prompt_tokens)
            self._queue_s.observe(timings.queue_s)
            self._computed.observe(usage.prompt_tokens - usage.cached_tokens)
            self._preemptions.observe(usage.preemptions)
            self.first_token_s.observe(timings.first_token_s)
            self._prefill_s.observe(timings.first_token_s - timings.queue_s)
            if event.params is not None:
                self._n.observe(event.params.n)
                # Of a prompt without an answer (`max_tokens: 0`) the engine computes one sample, and its params say 1.
                has_answer = usage.completion_tokens > 0 or event.reason is not FinishReason.LENGTH
                self._max_tokens.observe((event.params.max_tokens or 0) if has_answer else 0)

    def forget(self, request_id: str) -> None:
        """Forget a request of which a choice failed or was cancelled."""
        self._open.pop(request_id, None)
        self._left_out.pop(request_id, None)

    def families(self, labels: dict[str, str]) -> Iterator[Metric]:
        """Yield all histograms."""
        for member in vars(self).values():
            if isinstance(member, Histogram):
                yield member.family(labels)

    def _observe_longest(self, event: Finished) -> None:
        """Observe the longest choice of a request with the end of its last one."""
        num_choices = 1 if event.params is None else event.params.n
        lengths = self._open.setdefault(event.request_id, [])
        lengths.append(event.usage.completion_tokens)
        if len(lengths) == num_choices:
            self._longest.observe(max(self._open.pop(event.request_id)))
