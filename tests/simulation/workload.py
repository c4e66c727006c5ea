"""The requests of a run: arrival times, parameters, and behaviour of their clients."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random
from typing import NamedTuple
from zlib import crc32

from app.contract.requests import EngineRequest
from app.contract.sampling_params import SamplingParams
from app.engine.schedule.limits import SchedulerLimits
from tests.contract.blocks_needed import num_blocks_needed
from tests.engine.schedule.fake_tokens import VOCAB_SIZE


@dataclass(frozen=True, kw_only=True)
class Arrivals:
    """Arrival processes: one by one, in bursts, or with changing load as over a day (low, high, low)."""

    process: str = "poisson"
    num_requests: int = 16
    mean_gap_s: float = 0.01

    def times(self, rng: Random) -> Iterator[float]:
        """Yield the arrival times in order."""
        now = 0.0
        for number in range(self.num_requests):
            gap = self.mean_gap_s
            if self.process == "bursty":
                gap *= 8 if number % 8 == 0 else 0
            elif self.process == "trace":
                gap *= 4 if number % 24 < 8 else 0.25
            now += rng.expovariate(1 / gap) if gap else 0.0
            yield now


@dataclass(frozen=True, kw_only=True)
class Mix:
    """Mean lengths in tokens, and the share of requests with each property.

    `shares_prefix`: begins with one of `num_prefixes` common prompts; `ends_early`: the probability of each token to be
    the last; `is_too_long`: may never fit; `follows_up`: its output is part of the prompt of a later request;
    `repeats`: its output has so few different tokens that it repeats itself; `is_long`: its prompt has half of the
    longest length.
    """

    longest: int = 64
    mean_prompt: float = 8.0
    mean_answer: float = 8.0
    num_prefixes: int = 4
    shares_prefix: float = 0.0
    num_domains: int = 1
    parallel: float = 0.0
    beams: float = 0.0
    ends_early: float = 0.0
    cancels: float = 0.0
    reads_slowly: float = 0.0
    has_deadline: float = 0.0
    is_too_long: float = 0.0
    follows_up: float = 0.0
    repeats: float = 0.0
    is_long: float = 0.0

    @property
    def mean_tokens(self) -> float:
        """Mean number of tokens of a request, all choices together."""
        return self.mean_prompt + self.mean_answer * (1 + 3 * (self.parallel + self.beams))


@dataclass(frozen=True, kw_only=True)
class ClientScript:
    """A request, and the later actions of its client."""

    request: EngineRequest
    ends_early: float = 0.0
    cancels_at: float | None = None  # seconds after its arrival, in any state
    cancels_after: int | None = None  # tokens, all choices together
    pauses_after: int | None = None
    pause_s: float = 0.0
    follows_up: bool = False


class Domain(NamedTuple):
    """Requests of one domain may share KV blocks; the fake model distinguishes domains by their seed."""

    tenant: str | None
    cache_salt: str | None


DOMAINS = (Domain(None, None), Domain("t", None), Domain("t", "salt"))


class Workload:
    """Generates random requests of a mix; ids are r1, r2, ..."""

    def __init__(self, seed: int, mix: Mix, limits: SchedulerLimits) -> None:
        self.mix = mix
        self._limits = limits
        self._rng = Random(f"workload {seed}")
        self._words = Random(f"words {seed}")
        self._num_scripts = 0

    def next_request(
        self, arrival_time: float, history: tuple[int, ...] = (), domain: Domain | None = None
    ) -> ClientScript:
        """Return the next request; `history` is the conversation that it continues."""
        rng, mix = self._rng, self.mix
        domain = domain or rng.choice(DOMAINS[: mix.num_domains])
        prompt = history + self._make_prompt(max(0, mix.longest - 1 - len(history)))
        params = self._make_params(len(prompt), domain)
        if self._words.random() < mix.repeats and not params.use_beam_search:
            params = replace(params, top_k=self._words.choice([1, 1, 2, 3]))
        self._num_scripts += 1
        has_deadline = rng.random() < mix.has_deadline
        request = EngineRequest(
            f"r{self._num_scripts}",
            prompt,
            params,
            arrival_time,
            start_deadline=arrival_time + rng.expovariate(2) if has_deadline else None,
            deadline=arrival_time + rng.expovariate(0.5) if has_deadline else None,
            priority=rng.choice([0, 0, 0, 5, -3]),
            tenant=domain.tenant,
            cache_salt=domain.cache_salt,
            account=domain.tenant or "",
        )
        return ClientScript(request=request, **self._make_behaviour())

    def next_pin(self, number: int) -> ClientScript:
        """Return a request whose prompt is a common prefix, to be pinned."""
        num_tokens = max(1, min(self._limits.num_blocks * self._limits.block_size // 4, self.mix.longest - 1))
        params = SamplingParams(max_tokens=1, seed=_seed(DOMAINS[0]))
        return ClientScript(request=EngineRequest(f"pin{number}", self._prefix(number, num_tokens), params, 0.0))

    def _make_behaviour(self) -> dict[str, object]:
        rng, mix = self._rng, self.mix
        behaviour: dict[str, object] = {"ends_early": mix.ends_early, "follows_up": rng.random() < mix.follows_up}
        if rng.random() < mix.cancels:
            if rng.random() < 0.5:
                behaviour["cancels_at"] = rng.expovariate(5)
            else:
                behaviour["cancels_after"] = rng.randint(1, 20)
        if rng.random() < mix.reads_slowly:
            behaviour.update(pauses_after=rng.randint(1, 10), pause_s=rng.expovariate(10))
        return behaviour

    def _make_prompt(self, max_tokens: int) -> tuple[int, ...]:
        rng, mix = self._rng, self.mix
        num_tokens = min(1 + int(rng.expovariate(1 / mix.mean_prompt)), max_tokens)
        if mix.is_long and rng.random() < mix.is_long:
            num_tokens = min(mix.longest // 2, max_tokens)
        prefix: tuple[int, ...] = ()
        if rng.random() < mix.shares_prefix:
            prefix = self._prefix(rng.randrange(mix.num_prefixes), rng.randint(1, max(1, num_tokens)))[:num_tokens]
        return prefix + tuple(rng.randrange(1, VOCAB_SIZE) for _ in range(num_tokens - len(prefix)))

    def _prefix(self, number: int, num_tokens: int) -> tuple[int, ...]:
        first = 1 + 1000 * number % (VOCAB_SIZE - 1000)
        return tuple(range(first, first + num_tokens))

    def _make_params(self, num_prompt: int, domain: Domain) -> SamplingParams:
        """Parameters of a request that fits an empty pool, or (`is_too_long`) may not; the seed is the domain's."""
        rng, mix, limits = self._rng, self.mix, self._limits
        max_tokens = 1 + int(rng.expovariate(1 / mix.mean_answer))
        seats = min(limits.max_num_seqs, limits.max_num_batched_tokens)
        kind = rng.random()
        given: dict[str, object] = {}
        if kind < mix.parallel:
            best_of = rng.randint(2, 6)
            given = {"n": rng.randint(1, best_of), "best_of": best_of}
        elif kind < mix.parallel + mix.beams:
            width = rng.randint(2, 4)
            early_stopping = rng.choice([True, False, "never"])
            given = {"n": rng.randint(1, width), "use_beam_search": True, "beam_width": width}
            given |= {"early_stopping": early_stopping, "length_penalty": rng.choice([0.0, 1.0])}
        params = SamplingParams(max_tokens=max_tokens, seed=_seed(domain), **given)
        if rng.random() < mix.is_too_long:
            return params
        while not fits_alone(num_prompt, params, limits) or params.num_sequences > seats:
            if params.num_sequences == max_tokens == 1:
                return params  # too long in any case
            if params.num_sequences > 1 and (max_tokens < 4 or params.num_sequences > seats):
                given = {}
            max_tokens = max(1, max_tokens // 2)
            params = SamplingParams(max_tokens=max_tokens, seed=params.seed, **given)
        return params


def fits_alone(num_prompt: int, params: SamplingParams, limits: SchedulerLimits, capacity: int | None = None) -> bool:
    """Whether `capacity` blocks (default: the pool) and the context suffice for a request that runs alone."""
    max_slots = num_prompt + (params.max_tokens or 0) - 1
    num_blocks = num_blocks_needed(num_prompt, max_slots, params.num_sequences, limits.block_size)
    return max_slots < limits.max_model_len and num_blocks <= (limits.num_blocks if capacity is None else capacity)


def _seed(domain: Domain) -> int:
    return crc32(repr(domain).encode())
