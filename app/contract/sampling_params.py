"""Sampling parameters of a request, checked when they are created."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from app.contract.errors import InvalidValue, UnsupportedParameter
from app.contract.grammar import StructuredOutputs
from app.contract.parameter import Bounds, parameter, parameters_of
from app.contract.sampling_defaults import DEFAULT_NAMES, SamplingDefaults
from app.contract.vllm_params import takes_vllm_params

MAX_LOGPROBS = 20
MAX_SCORED_TOKENS = 4096
MAX_SEQUENCES = 16
MAX_STOP_STRINGS = 16
MAX_STOP_LENGTH = 256
MAX_STOP_TOKEN_IDS = 64
MAX_LOGIT_BIAS = 300
MAX_BIAS = 100
MAX_TOKENS = 2**31 - 1
MAX_LENGTH = 2**63 - 1
"""Of an output: admission names the limit of the request, which is far lower."""


_TOKEN_ID = Bounds(0, MAX_TOKENS)
_SIGNED, _SHARE = Bounds(-2.0, 2.0, is_integer=False), Bounds(0.0, 1.0, is_integer=False)


@takes_vllm_params
@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How tokens are sampled and when a sequence ends; `None` means the model's default.

    Parameters that depend on others are checked with them: `structured_outputs` cannot be combined with `min_tokens`,
    `ignore_eos` or beam search, and `repetition_stop` not with beam search. Other keywords of vLLM's are accepted where
    they ask for what is so anyway (`app.contract.vllm_params`).

    Raises:
        InvalidValue: a value is out of range; `param` names it.
        UnsupportedParameter: a feature is not supported.
    """

    n: int = parameter(1, "Number of choices.", Bounds(1, MAX_SEQUENCES))
    best_of: int | None = parameter(
        None,
        "Sample so many, and return the `n` with the highest log-probability per token.",
        Bounds(1, MAX_SEQUENCES),
    )
    use_beam_search: bool = parameter(False, "Search for the `n` most likely sequences instead of sampling.")
    beam_width: int | None = parameter(
        None, "Number of beams of a beam search; by default `n`, at least 2.", Bounds(1, MAX_SEQUENCES)
    )
    length_penalty: float = parameter(
        1.0,
        "Exponent of a beam's length: its score is `log-probability / length ** length_penalty`.",
        Bounds(-10.0, 10.0, is_integer=False),
    )
    early_stopping: bool | str = parameter(
        False,
        "When a beam search ends: true when `beam_width` sequences are complete, false when a better one is unlikely, "
        '"never" when a better one is impossible.',
    )
    temperature: float | None = parameter(
        None,
        "Sampling temperature; 0 always takes the most likely token, higher values vary more.",
        Bounds(0.0, 2.0, is_integer=False),
        is_option=True,
    )
    top_p: float | None = parameter(
        None,
        "Sample from the most likely tokens that together have this probability; 0 is greedy, 1 allows all.",
        _SHARE,
        is_option=True,
    )
    top_k: int | None = parameter(
        None, "Sample from this many most likely tokens; 0 or -1 allows all.", Bounds(-1, MAX_TOKENS), is_option=True
    )
    min_p: float | None = parameter(
        None,
        "Exclude tokens below this fraction of the most likely token's probability; 0 allows all.",
        _SHARE,
        is_option=True,
    )
    repetition_penalty: float | None = parameter(
        None,
        "Above 1, tokens that occur in the prompt or the output become less likely.",
        Bounds(0.01, 10.0, is_integer=False),
        is_option=True,
    )
    presence_penalty: float = parameter(
        0.0, "Above 0, tokens that occur in the output become less likely.", _SIGNED, is_option=True
    )
    frequency_penalty: float = parameter(
        0.0, "Above 0, tokens become less likely with each occurrence in the output.", _SIGNED, is_option=True
    )
    logit_bias: Mapping[int, float] | None = parameter(
        None, "Numbers that are added to the logits of tokens, by token id."
    )
    seed: int | None = parameter(
        None,
        "Seed of the sampling: the same seed, parameters and prompt give the same output.",
        Bounds(-(2**63), 2**64 - 1),
        is_option=True,
    )
    max_tokens: int | None = parameter(16, "Maximum number of output tokens.", Bounds(1, MAX_LENGTH), is_option=True)
    min_tokens: int = parameter(
        0,
        "Nothing ends the output before so many tokens, and stop strings in the text of these are text.",
        Bounds(0, MAX_LENGTH),
    )
    stop: str | Sequence[str] | None = parameter(None, "Texts that end the output and are not part of it.")
    stop_token_ids: Sequence[int] | None = parameter(None, "Tokens that end the output and are not part of it.")
    ignore_eos: bool = parameter(False, "Whether the model's own end of an output is ignored.")
    logprobs: int | None = parameter(
        None,
        "Return the log-probability of each token of the output; as a number, also those of so many most likely tokens "
        "in its place.",
        Bounds(0, MAX_LOGPROBS),
    )
    prompt_logprobs: int | None = parameter(
        None,
        "Return the log-probability of each token of the prompt, and those of so many most likely tokens in its place.",
        Bounds(0, MAX_LOGPROBS),
    )
    structured_outputs: StructuredOutputs | None = parameter(None, "What the answer must be.")
    thinking_token_budget: int | None = parameter(
        None,
        "The most tokens that the model may reason, where its reasoning stands between marks; then the closing mark "
        "comes next.",
        Bounds(0, MAX_TOKENS),
    )
    repetition_stop: bool = parameter(
        False,
        "End an output whose last 256 tokens or more are one period of at most 64 tokens, at least eight times, with "
        "the finish reason `length`.",
    )

    def __post_init__(self) -> None:
        for name, bounds in BOUNDS.items():
            check = _check_int if bounds.is_integer else _check_float
            check(name, getattr(self, name), bounds)
        if self.best_of is not None and self.best_of < self.n:
            raise InvalidValue(f"best_of is {self.best_of}; it must be at least n ({self.n}).", param="best_of")
        _check_bool("repetition_stop", self.repetition_stop)
        self._check_beams()
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidValue(
                f"min_tokens is {self.min_tokens}; it must be at most max_tokens ({self.max_tokens}).",
                param="min_tokens",
            )
        _check_stop(self.stop_strings)
        _check_ids("stop_token_ids", self.stop_token_ids or (), MAX_STOP_TOKEN_IDS)
        check_bias(self.logit_bias or {})
        if self.structured_outputs is not None:
            _check_structured(self.structured_outputs)
            check_with_grammar(self)
        elif self.thinking_token_budget is not None and self.use_beam_search:
            raise InvalidValue(
                "thinking_token_budget cannot be combined with use_beam_search; leave one of them out.",
                param="thinking_token_budget",
            )

    @property
    def num_sequences(self) -> int:
        """The number of sequences that are generated together: beams, candidates or choices."""
        if self.use_beam_search:
            return self.beam_width or max(self.n, 2)
        return self.best_of or self.n

    @property
    def num_sequences_param(self) -> str:
        """The name of the parameter that determines `num_sequences`."""
        return "beam_width" if self.use_beam_search else "best_of" if self.best_of else "n"

    @property
    def is_ranked(self) -> bool:
        """Whether the choices are selected only after all sequences have ended."""
        return self.use_beam_search or self.num_sequences > self.n

    @property
    def num_sampled_logprobs(self) -> int | None:
        """How many log-probabilities the sampler returns with each token (0: the token's own); None: none."""
        if self.use_beam_search:
            return 2 * self.num_sequences  # the sampler returns more if more tokens than that can end a sequence
        return 0 if self.logprobs is None and self.is_ranked else self.logprobs

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """The stop strings as a tuple, whatever form they were given in."""
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    def with_defaults(self, defaults: SamplingDefaults) -> SamplingParams:
        """Return a copy in which every `None` of a model-dependent field is the model's default (neutral for beams)."""
        if self.use_beam_search:
            defaults = SamplingDefaults(temperature=0.0)
        missing = [name for name in DEFAULT_NAMES if getattr(self, name) is None]
        return replace(self, **{name: getattr(defaults, name) for name in missing})

    def _check_beams(self) -> None:
        _check_bool("use_beam_search", self.use_beam_search)
        if not isinstance(self.early_stopping, bool) and self.early_stopping != "never":
            raise InvalidValue(
                f'early_stopping is {self.early_stopping!r:.40}; it must be true, false or "never".',
                param="early_stopping",
            )
        if not self.use_beam_search:
            for name, is_set in (
                ("beam_width", self.beam_width is not None),
                ("length_penalty", self.length_penalty != 1.0),
                ("early_stopping", self.early_stopping is not False),
            ):
                if is_set:
                    raise InvalidValue(f"{name} needs use_beam_search; leave it out, or set both.", param=name)
            return
        if self.beam_width is not None and self.beam_width < self.n:
            raise InvalidValue(
                f"beam_width is {self.beam_width}; it must be at least n ({self.n}).", param="beam_width"
            )
        for name, value in (
            ("best_of", self.best_of),
            ("logprobs", self.logprobs is not None),
            ("prompt_logprobs", self.prompt_logprobs is not None),
            ("logit_bias", self.logit_bias),
            ("presence_penalty", self.presence_penalty),
            ("frequency_penalty", self.frequency_penalty),
            ("stop", self.stop),
            ("repetition_stop", self.repetition_stop),
            ("temperature", self.temperature),
            ("top_p", self.top_p not in (None, 1.0)),
            ("top_k", self.top_k not in (None, 0, -1)),
            ("min_p", self.min_p),
            ("repetition_penalty", self.repetition_penalty not in (None, 1.0)),
        ):
            if value:
                raise UnsupportedParameter(f"{name} cannot be combined with beam search; leave it out.", param=name)


PARAMETERS = parameters_of(SamplingParams)
BOUNDS: Mapping[str, Bounds] = {each.name: each.bounds for each in PARAMETERS if each.bounds is not None}


def _check_bool(name: str, value: bool) -> None:
    if not isinstance(value, bool):
        raise InvalidValue(f"{name} is {value!r:.40}; it must be true or false.", param=name)


def _check_float(name: str, value: float | None, bounds: Bounds) -> None:
    """Reject anything but a finite number within `bounds`."""
    if value is None:
        return
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not bounds.low <= value <= bounds.high:  # which no NaN is
        span = f"between {bounds.low:g} and {bounds.high:g}"
        raise InvalidValue(f"{name} is {value!r}; it must be a number {span}.", param=name)


def _check_int(name: str, value: int | None, bounds: Bounds) -> None:
    if value is None:
        return
    if not isinstance(value, int) or isinstance(value, bool) or not bounds.low <= value <= bounds.high:
        is_open = bounds.high == MAX_LENGTH and not (isinstance(value, int) and value > MAX_LENGTH)
        span = f"of at least {bounds.low}" if is_open else f"between {bounds.low} and {bounds.high}"
        raise InvalidValue(f"{name} is {value!r}; it must be an integer {span}.", param=name)


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
        _check_int(name, token_id, _TOKEN_ID)


def check_with_grammar(params: SamplingParams) -> None:
    """Reject parameters that contradict a grammar: they continue an answer that is complete. Any thread.

    Raises:
        InvalidValue: there are such parameters; `param` names one.
    """
    for name, is_set in (
        ("use_beam_search", params.use_beam_search),
        ("ignore_eos", params.ignore_eos),
        ("min_tokens", params.min_tokens > 0),
    ):
        if is_set:
            raise InvalidValue(f"{name} cannot be combined with structured outputs; leave one of them out.", param=name)


def _check_structured(given: object) -> None:
    if not isinstance(given, StructuredOutputs):
        raise InvalidValue(
            f"structured_outputs is {_kind(given)}; it must be a StructuredOutputs, such as "
            "StructuredOutputs(json=SCHEMA), imported by `from app import StructuredOutputs`.",
            param="structured_outputs",
        )


def _kind(given: object) -> str:
    keys = ", ".join(map(repr, list(given)[:3])) if isinstance(given, Mapping) else ""
    return f"a {type(given).__name__}{f' with {keys}' if keys else ''}"


def check_bias(bias: Mapping[Any, Any]) -> None:
    """Check that a logit bias maps token ids to numbers within bounds, and has not too many entries. Any thread.

    Raises:
        InvalidValue: it does not; the message names the token and the bounds.
    """
    if len(bias) > MAX_LOGIT_BIAS:
        raise InvalidValue(
            f"logit_bias has {len(bias)} entries; at most {MAX_LOGIT_BIAS} are allowed.", param="logit_bias"
        )
    for token_id, value in bias.items():
        if not isinstance(token_id, int) or not 0 <= token_id <= MAX_TOKENS:
            raise InvalidValue(
                f"logit_bias has the key {str(token_id)[:40]!r}; it must be a token id, at least 0.", param="logit_bias"
            )
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or not -MAX_BIAS <= value <= MAX_BIAS:
            shown = f"{value:g}" if is_number else repr(value)[:40]
            raise InvalidValue(
                f"logit_bias of token {token_id} is {shown}; it must be a number between {-MAX_BIAS} and {MAX_BIAS}.",
                param="logit_bias",
            )
