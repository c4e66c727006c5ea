"""Sampling parameters: the caller's wishes, checked once at the door."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from app.errors import InvalidValue, UnsupportedParameter

MAX_LOGPROBS = 20
MAX_STOP_STRINGS = 4
MAX_STOP_LENGTH = 64
MAX_STOP_TOKEN_IDS = 64
MAX_LOGIT_BIAS = 300
MAX_TOKENS = 2**31 - 1


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """What `None` means for a model: its `generation_config.json`, else neutral values."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How to turn logits into tokens and when to stop; `None` means the model's default.

    `top_k` 0 or -1 and `top_p` 1 switch the filter off; `temperature` 0 is greedy. `stop` strings and
    `stop_token_ids` end the answer and are not part of it. `logprobs` = k asks for the chosen token's and the
    k best tokens' log-probabilities.

    Raises:
        InvalidValue: a value out of range; `param` names it.
        UnsupportedParameter: a feature this version does not have.
    """

    n: int = 1
    best_of: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float | None = None
    logit_bias: Mapping[int, float] | None = None
    seed: int | None = None
    stop: str | Sequence[str] | None = None
    stop_token_ids: Sequence[int] | None = None
    ignore_eos: bool = False
    min_tokens: int = 0
    max_tokens: int | None = 16
    logprobs: int | None = None
    prompt_logprobs: int | None = None

    def __post_init__(self) -> None:
        self._refuse_unbuilt()
        _check_float("temperature", self.temperature, 0.0, 2.0)
        _check_float("top_p", self.top_p, 0.0, 1.0, above=True)
        _check_float("min_p", self.min_p, 0.0, 1.0)
        _check_float("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _check_float("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _check_float("repetition_penalty", self.repetition_penalty, 0.01, 10.0)
        _check_int("top_k", self.top_k, -1, MAX_TOKENS)
        _check_int("seed", self.seed, -(2**63), 2**64 - 1)
        _check_int("max_tokens", self.max_tokens, 1, MAX_TOKENS)
        _check_int("min_tokens", self.min_tokens, 0, MAX_TOKENS)
        _check_int("logprobs", self.logprobs, 0, MAX_LOGPROBS)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidValue(
                f"min_tokens is {self.min_tokens}, more than max_tokens {self.max_tokens}.", param="min_tokens"
            )
        _check_stop(self.stop_strings)
        _check_ids("stop_token_ids", self.stop_token_ids or (), MAX_STOP_TOKEN_IDS)
        _check_bias(self.logit_bias or {})

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token is taken without a draw."""
        return self.temperature == 0.0

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """The stop strings as a tuple, whatever form they were given in."""
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    def with_defaults(self, defaults: SamplingDefaults) -> SamplingParams:
        """Return a copy in which every `None` of a model-dependent field is the model's default."""
        return replace(
            self,
            temperature=defaults.temperature if self.temperature is None else self.temperature,
            top_p=defaults.top_p if self.top_p is None else self.top_p,
            top_k=defaults.top_k if self.top_k is None else self.top_k,
            min_p=defaults.min_p if self.min_p is None else self.min_p,
            repetition_penalty=(
                defaults.repetition_penalty if self.repetition_penalty is None else self.repetition_penalty
            ),
        )

    def _refuse_unbuilt(self) -> None:
        _check_int("n", self.n, 1, 8)
        _check_int("best_of", self.best_of, 1, 8)
        for name, value, only in (("n", self.n, 1), ("best_of", self.best_of, None)):
            if value != only and value != 1:
                raise UnsupportedParameter(
                    f"{name}={value} is not supported; only 1 is. Send the request several times.", param=name
                )
        if self.prompt_logprobs is not None:
            raise UnsupportedParameter("prompt_logprobs is not supported; leave it out.", param="prompt_logprobs")


def _check_float(name: str, value: float | None, low: float, high: float, *, above: bool = False) -> None:
    """Refuse anything but a finite number in [low, high], or in (low, high] with `above`."""
    if value is None:
        return
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or not low <= value <= high or (above and value == low):
        bounds = f"above {low:g} and at most {high:g}" if above else f"between {low:g} and {high:g}"
        raise InvalidValue(f"{name} is {value!r}; it must be a number {bounds}.", param=name)


def _check_int(name: str, value: int | None, low: int, high: int) -> None:
    if value is None:
        return
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise InvalidValue(f"{name} is {value!r}; it must be an integer between {low} and {high}.", param=name)


def _check_stop(stop: tuple[str, ...]) -> None:
    if len(stop) > MAX_STOP_STRINGS:
        raise InvalidValue(f"stop has {len(stop)} strings; at most {MAX_STOP_STRINGS} are allowed.", param="stop")
    for text in stop:
        if not isinstance(text, str) or not 1 <= len(text) <= MAX_STOP_LENGTH:
            raise InvalidValue(f"stop strings must have 1 to {MAX_STOP_LENGTH} characters.", param="stop")


def _check_ids(name: str, ids: Sequence[int], limit: int) -> None:
    if len(ids) > limit:
        raise InvalidValue(f"{name} has {len(ids)} ids; at most {limit} are allowed.", param=name)
    for token_id in ids:
        _check_int(name, token_id, 0, MAX_TOKENS)


def _check_bias(bias: Mapping[int, float]) -> None:
    if len(bias) > MAX_LOGIT_BIAS:
        raise InvalidValue(
            f"logit_bias has {len(bias)} entries; at most {MAX_LOGIT_BIAS} are allowed.", param="logit_bias"
        )
    for token_id, value in bias.items():
        _check_int("logit_bias", token_id, 0, MAX_TOKENS)
        _check_float("logit_bias", value, -100.0, 100.0)
