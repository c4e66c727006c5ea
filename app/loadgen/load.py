"""What one run asks for, and the requests that it makes of that, drawn from a seed."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

import orjson

from app.loadgen.arrivals import arrival_times
from app.loadgen.lengths import MODELS, Lengths, drawn, fixed
from app.loadgen.prompts import token_ids, words
from app.loadgen.target import Target

PATHS = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}


class Request(NamedTuple):
    """One request, ready to be written.

    Attributes:
        due_s: when it is to be sent, in seconds since the run began.
        cancel_after: close the connection after so many chunks; None reads to the end.
    """

    due_s: float
    message: bytes
    cancel_after: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Load:
    """What is asked, as the options of `quire bench serve` say it."""

    endpoint: str = "completions"
    model: str = ""
    num_requests: int = 100
    duration_s: float | None = None
    burstiness: float = 1.0
    max_concurrency: int | None = None
    input_len: int = 256
    output_len: int = 128
    lengths: str | None = None
    vocab_size: int | None = None  # prompts are token ids below it; None is text
    temperature: float | None = None
    ignore_eos: bool = False
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    warm_up: int = 1
    cancel_share: float = 0.0
    timeout_s: float = 600.0
    seed: int = 0

    def count(self, rate: float) -> int | None:
        """Return how many requests are sent at `rate`; None where only the time says when to end."""
        if self.duration_s is None:
            return self.num_requests
        return None if math.isinf(rate) else max(1, round(rate * self.duration_s))

    def requests(self, target: Target, rate: float, turn: int) -> Iterable[Request]:
        """Return the requests of one run.

        Arrivals, lengths and cancellations are those of the seed at every rate; prompts are new in each `turn`.
        """
        count = self.count(rate)
        if count is None:
            return self._endless(target, turn)
        times = arrival_times(rate, count, self.burstiness, random.Random(f"{self.seed} arrivals"))
        requests = islice(self._endless(target, turn), count)
        return [request._replace(due_s=due) for request, due in zip(requests, times, strict=True)]

    def warm_ups(self, target: Target) -> list[Request]:
        """Return the requests that are sent before; none of them is cancelled."""
        return [request._replace(cancel_after=None) for request in islice(self._endless(target, -1), self.warm_up)]

    def body(self, lengths: Lengths, rng: random.Random) -> dict[str, Any]:
        """Return the JSON of one request with a random prompt."""
        fields: dict[str, Any] = {"model": self.model}
        if self.endpoint == "chat":
            fields["messages"] = [{"role": "user", "content": words(lengths.num_prompt, rng)}]
        elif self.vocab_size is None:
            fields["prompt"] = words(lengths.num_prompt, rng)
        else:
            fields["prompt"] = token_ids(lengths.num_prompt, self.vocab_size, rng)
        fields |= {"max_tokens": lengths.num_answer, "stream": True, "stream_options": {"include_usage": True}}
        if self.temperature is not None:
            fields["temperature"] = self.temperature
        if self.ignore_eos:
            fields["ignore_eos"] = True
        return fields | dict(self.extra_body)

    def _endless(self, target: Target, turn: int) -> Iterator[Request]:
        prompts, cancels = random.Random(f"{self.seed} prompts {turn}"), random.Random(f"{self.seed} cancels")
        is_drawn = self.lengths is not None
        every = drawn(MODELS[str(self.lengths)], self.seed) if is_drawn else fixed(self.input_len, self.output_len)
        for lengths in every:
            message = target.post(PATHS[self.endpoint], orjson.dumps(self.body(lengths, prompts)))
            is_cancelled, after = cancels.random() < self.cancel_share, cancels.randrange(lengths.num_answer)
            yield Request(0.0, message, after if is_cancelled else None)
