"""How the sequence in a state row samples its tokens: the request's parameters with nothing left open."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from app.contract.grammar import Constraint
from app.contract.sampling_params import SamplingParams

# Below this every sample is the best token anyway, and smaller divisors overflow float32.
MIN_TEMPERATURE = 1e-5


@dataclass(frozen=True, slots=True)
class RowSampling:
    """The sampling parameters that all samplers read: made once per request, all resolved but for two.

    `temperature` 0 is greedy, `top_k` 0, `top_p` 1 and `min_p` 0 keep every token; `seed` is in [0, 2^64).
    `num_logprobs` is how many of the best tokens' log-probabilities come with each token; None: not even its own.
    `max_tokens` is the longest answer; None where it is not known yet.
    A beam search samples no tokens: the search needs the best ones, and applies `min_tokens` itself. With a
    `constraint` a mask may forbid tokens at every position (see execute/masks.py).
    """

    seed: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition: float
    presence: float
    frequency: float
    logit_bias: Mapping[int, float]
    min_tokens: int
    stop_token_ids: Collection[int]
    num_logprobs: int | None
    num_sequences: int
    is_beam_search: bool
    max_tokens: int | None = None
    constraint: Constraint | None = None
    account: str = ""

    @classmethod
    def of(cls, params: SamplingParams, constraint: Constraint | None = None, account: str = "") -> RowSampling:
        """Resolve `params`, of a request of `account`; a model-dependent field that is None is neutral."""
        temperature = 1.0 if params.temperature is None else params.temperature
        if params.top_p == 0.0:  # which only the most likely token passes
            temperature = 0.0
        return cls(
            seed=(params.seed or 0) & 0xFFFF_FFFF_FFFF_FFFF,
            temperature=max(temperature, MIN_TEMPERATURE) if temperature else 0.0,
            top_k=max(params.top_k or 0, 0),
            top_p=1.0 if params.top_p is None else params.top_p,
            min_p=params.min_p or 0.0,
            repetition=1.0 if params.repetition_penalty is None else params.repetition_penalty,
            presence=params.presence_penalty,
            frequency=params.frequency_penalty,
            logit_bias=params.logit_bias or {},
            min_tokens=0 if params.use_beam_search else params.min_tokens,
            stop_token_ids=params.stop_token_ids or (),
            num_logprobs=params.num_sampled_logprobs,
            num_sequences=params.num_sequences,
            is_beam_search=params.use_beam_search,
            max_tokens=params.max_tokens,
            constraint=constraint,
            account=account,
        )

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token is taken without noise."""
        return self.temperature == 0.0

    @property
    def has_penalties(self) -> bool:
        """Whether earlier tokens change the sampling of the next one."""
        return bool(self.presence or self.frequency or self.repetition != 1.0)

    @property
    def changes_logits(self) -> bool:
        """Whether tokens are sampled from other logits than the model's, at one position at least."""
        return bool(self.logit_bias or self.min_tokens or self.has_penalties)

    def endings(self, eos_token_ids: Collection[int]) -> list[int]:
        """Return the token ids, ascending, that may end an answer."""
        return sorted({*eos_token_ids, *self.stop_token_ids})
