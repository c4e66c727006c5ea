"""The load of one run as its options describe it, and its requests, made from a seed."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate, islice
from typing import Any, NamedTuple

import orjson

from app.loadgen.lengths import MODELS, Lengths, fixed, sampled
from app.loadgen.target import Target

PATHS = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}

# Short words, which are one token each in most vocabularies.
_WORDS = """
    air answer apple arm back ball bank bar base bear bed bell bird blood blue board boat body bone book box boy branch
    bread bridge brother brown bus cake camp car card care case cat chair chance child church city class clock cloud
    coat coffee cold color corner country course cow cross cup dance dark day deal deep desk dinner dog door dream dress
    drink driver dust ear earth east edge egg end engine evening eye face fact family farm father field fire fish floor
    flower food foot forest friend front fruit game garden gate girl glass gold grass gray green ground group hair hall
    hand hat head heart heat hill history home horse hour house ice idea iron island job key king kitchen lake land law
    leaf leg letter life light line list lunch machine man map mark market meal metal milk mind minute money moon
    morning mother mountain mouth music name neck night north nose note number office oil orange order page paint paper
    park part party path people person picture piece place plan plant plate point power price queen question rain red
    rest rice ring river road rock roof room root rose salt sand school sea seat ship shirt shoe shop side sign silver
    sister skin sky sleep snow song sound south space spring star state station step stone store storm story street
    sugar summer sun table tea team test thing time tooth tower town train tree trip truck uncle valley voice wall war
    watch water way week west wheel wind window wine winter wood word work world year yellow young
"""
WORDS = tuple(_WORDS.split())


class Request(NamedTuple):
    """One request as the bytes of its message.

    Attributes:
        due_s: when to send the message, in seconds since the run began.
        cancel_after: number of chunks after which the client disconnects; None reads to the end.
    """

    due_s: float
    message: bytes
    cancel_after: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Load:
    """The load of a run: the options of `quire bench serve`."""

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

    def describe(self) -> str:
        """Describe the load in the units of this client: how many tokens words are, only the server knows."""
        kind = "words" if self.vocab_size is None else "token ids"
        if self.lengths:
            return f"prompts of random {kind}, as many as {MODELS[self.lengths].name} prompts have tokens"
        return f"prompts of {self.input_len:,} random {kind}, at most {self.output_len:,} tokens out"

    def count(self, rate: float) -> int | None:
        """Return the number of requests at `rate`; None if only the duration limits it."""
        if self.duration_s is None:
            return self.num_requests
        return None if math.isinf(rate) else max(1, round(rate * self.duration_s))

    def requests(self, target: Target, rate: float, run_number: int) -> Iterable[Request]:
        """Return the requests of one run.

        Arrivals, lengths and cancellations depend on the seed only, so they are the same at every rate; prompts depend
        on `run_number` too, so that no run finds the prompts of another one in a prefix cache.
        """
        count = self.count(rate)
        if count is None:
            return self._generate(target, run_number)
        times = arrival_times(rate, count, self.burstiness, random.Random(f"{self.seed} arrivals"))
        requests = islice(self._generate(target, run_number), count)
        return [request._replace(due_s=due) for request, due in zip(requests, times, strict=True)]

    def warm_ups(self, target: Target) -> list[Request]:
        """Return the requests of the warm-up; none of them is cancelled."""
        return [request._replace(cancel_after=None) for request in islice(self._generate(target, -1), self.warm_up)]

    def body(self, lengths: Lengths, rng: random.Random) -> dict[str, Any]:
        """Return the JSON of one request with a random prompt."""
        streaming = {"stream": True, "stream_options": {"include_usage": True}}
        fields: dict[str, Any] = {"model": self.model, "max_tokens": lengths.num_answer, **streaming}
        if self.endpoint == "chat":
            fields["messages"] = [{"role": "user", "content": random_words(lengths.num_prompt, rng)}]
        elif self.vocab_size is None:
            fields["prompt"] = random_words(lengths.num_prompt, rng)
        else:
            fields["prompt"] = rng.choices(range(self.vocab_size), k=lengths.num_prompt)
        if self.temperature is not None:
            fields["temperature"] = self.temperature
        if self.ignore_eos:
            fields["ignore_eos"] = True
        return fields | dict(self.extra_body)

    def _generate(self, target: Target, run_number: int) -> Iterator[Request]:
        prompts, cancels = random.Random(f"{self.seed} prompts {run_number}"), random.Random(f"{self.seed} cancels")
        model = MODELS[self.lengths] if self.lengths else None
        for lengths in sampled(model, self.seed) if model else fixed(self.input_len, self.output_len):
            message = target.post(PATHS[self.endpoint], orjson.dumps(self.body(lengths, prompts)))
            is_cancelled, after = cancels.random() < self.cancel_share, cancels.randrange(lengths.num_answer)
            yield Request(0.0, message, after if is_cancelled else None)


def arrival_times(rate: float, count: int, burstiness: float, rng: random.Random) -> list[float]:
    """Return when each of `count` requests is due, in seconds since the run began.

    The gaps have a gamma distribution of the shape `burstiness`: 1 is a Poisson process, less is burstier, infinity has
    equal gaps. All times are scaled so that the last one is exactly `count / rate`; otherwise the rate of a short run
    would differ from `rate` by a tenth or so.
    """
    if math.isinf(rate):
        return [0.0] * count
    has_equal_gaps = math.isinf(burstiness)
    times = list(accumulate(1.0 if has_equal_gaps else rng.gammavariate(burstiness, 1.0) for _ in range(count)))
    if times[-1] == 0:  # with a burstiness as low as 1e-9 all gaps are 0 in floating point
        return times
    return [count / rate * (time / times[-1]) for time in times]


def random_words(count: int, rng: random.Random) -> str:
    """Return `count` random words, which are about as many tokens. Prompts differ, so no prefix cache has them."""
    return " ".join(rng.choices(WORDS, k=count))
