"""Admission: checks one request against the limits of the model, and fills in defaults."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace

from app.contract.engine_status import ModelInfo
from app.contract.errors import ContextLengthExceeded, InvalidValue, KVCapacityExceeded, UnsupportedParameter
from app.contract.requests import ToldChoice
from app.contract.sampling_params import MAX_SCORED_TOKENS, MAX_TOKENS, SamplingParams

# Clients recognize a full context only by these words of the message: OpenAI's, and llama.cpp's for a full KV cache.
# LangChain.js looks for the code, which the error of OpenAI's JavaScript client has in no text.
CONTEXT_WORDS = "This model's maximum context length is {} tokens."
CONTEXT_END = " (context_length_exceeded)"
CAPACITY_WORDS = "exceeds the available context size"
MAX_OUTPUT = 1_000_000
"""The most values in the output of one request of a server: sequences x max_tokens x (1 + top_logprobs).

Prompts that the answer shows count too: n x prompt tokens x (1 + prompt_logprobs)."""
MAX_SHOWN = MAX_OUTPUT // 2
"""The most values of those prompts."""


@dataclass(frozen=True, slots=True)
class OutputLimit:
    """The largest `max_tokens` that a server allows for any model: all sequences generate at most `num_left` values.

    Attributes:
        most: the largest `max_tokens`.
        num_left: the values that all sequences may generate together.
        is_reduced: whether prompts that the answer shows have taken some of them.
        factors: how often a token counts, in words with a place for the tokens of a sequence.
        times: the same as a number.
    """

    most: int = MAX_TOKENS
    num_left: int = MAX_OUTPUT
    is_reduced: bool = False
    factors: str = ""
    times: int = 1

    def error(self, name: str, value: int) -> InvalidValue:
        """Return the error for a value of the parameter `name` that is too large."""
        return InvalidValue(
            f"{self.factors.format(f'{name} {value}')} is {value * self.times}; one request may generate at most "
            f"{self.num_left}{' besides its prompts' if self.is_reduced else ''}. "
            f"Lower {name} to {self.most}, or lower the other factors.",
            param=name,
        )


NO_OUTPUT_LIMIT = OutputLimit()


@dataclass(frozen=True, slots=True, kw_only=True)
class DefaultLength:
    """The limits of an answer whose request names no `max_tokens`: all, beside the model's default and what fits.

    Attributes:
        context_share: the share of the whole context that it may fill.
        otherwise: the limit where the model has no default.
        is_unlimited: the request says so (`max_tokens` -1), and neither the model's default nor `otherwise` acts.
        most: the limit of a server that has much to do.

    Raises:
        InvalidValue: `context_share` is no share.
    """

    context_share: float | None = None
    otherwise: int | None = None
    is_unlimited: bool = False
    most: int | None = None

    def __post_init__(self) -> None:
        if self.context_share is not None and not 0 < self.context_share <= 1:
            raise InvalidValue(
                f"context_share is {self.context_share}; it must be a number above 0 and at most 1.",
                param="context_share",
            )

    def tokens(self, model: ModelInfo) -> int | None:
        """Return the most tokens of such an answer of a model; None: as many as fit."""
        share = None if self.context_share is None else max(1, int(model.max_model_len * self.context_share))
        of_model = None if self.is_unlimited else model.defaults.max_tokens or self.otherwise
        return min((limit for limit in (share, of_model, self.most) if limit is not None), default=None)


MODELS_LENGTH = DefaultLength()


def admit(
    prompt_token_ids: Sequence[int],
    params: SamplingParams,
    model: ModelInfo,
    output: OutputLimit = NO_OUTPUT_LIMIT,
    *,
    is_clamped: bool = False,
    length: DefaultLength = MODELS_LENGTH,
) -> SamplingParams:
    """Return `params` resolved for this model and prompt: defaults, `max_tokens` and `seed` are set.

    `max_tokens` None means what `length` says, and at most the rest of the context or, if smaller, of the KV cache or
    of `output`; with `is_clamped` a larger one is lowered to that. Lists and dicts are copied, so the caller may change
    the originals later. Any thread.

    Raises:
        InvalidValue: an empty prompt, a token id outside the vocabulary, too many tokens to score, or more output than
            `output` allows.
        UnsupportedParameter: the device cannot score prompts.
        ContextLengthExceeded: the prompt leaves no room for output, or prompt + `max_tokens` exceed the context.
        KVCapacityExceeded: the prompt, or prompt + `max_tokens`, does not fit the KV cache.
    """
    params = _copy(params)
    _check_prompt(prompt_token_ids, model)
    _check_vocabulary(params, model.vocab_size)
    if params.prompt_logprobs is not None:
        _check_scored(len(prompt_token_ids), model)
    num_prompt, num_blocks = len(prompt_token_ids), model.kv_capacity_tokens // model.block_size
    most = _most_tokens(num_prompt, params.num_sequences, num_blocks, model.block_size)
    room = min(model.max_model_len - num_prompt, most, output.most)
    if params.max_tokens is None and (default := length.tokens(model)) is not None:
        room = min(room, default)
    if params.max_tokens is None or (is_clamped and params.max_tokens > room):
        params = replace(params, max_tokens=max(1, params.min_tokens, room))
    check_fits(
        num_prompt,
        params,
        max_model_len=model.max_model_len,
        max_num_seqs=model.max_num_seqs,
        num_blocks=num_blocks,
        block_size=model.block_size,
        output=output,
    )
    seed = secrets.randbits(64) if params.seed is None else params.seed
    return replace(params.with_defaults(model.defaults), seed=seed)


def too_long(
    max_model_len: int, what: str, *, param: str = "prompt", num_tokens: int | None = None
) -> ContextLengthExceeded:
    """Return the error for a text or a prompt that is too long; `what` is a clause with its length. Any thread.

    It has `num_tokens`, if they were counted.
    """
    error = ContextLengthExceeded(
        f"{CONTEXT_WORDS.format(max_model_len)} {what}; shorten it.{CONTEXT_END}", param=param
    )
    error.num_prompt_tokens = max_model_len if num_tokens is None else num_tokens
    return error


def output_limit(params: SamplingParams, num_prompts: int = 1, num_shown_tokens: int = 0) -> OutputLimit:
    """Return the largest `max_tokens` that a server allows for any model: all sequences generate at most `MAX_OUTPUT`.

    With `best_of` all generated sequences count, because all are kept until the best ones are known. The sequences of
    all `num_prompts` prompts of a request count, and the `num_shown_tokens` tokens of prompts that the answer shows,
    with their log-probabilities. Any thread.

    Raises:
        InvalidValue: too much of the prompts is shown.
    """
    num_left = MAX_OUTPUT - _num_shown(params, num_shown_tokens)
    times = params.num_sequences * num_prompts * (1 + (params.logprobs or 0))
    sequences = f"{params.num_sequences_param} {params.num_sequences}"
    if num_prompts > 1:
        sequences = f"{num_prompts} prompts x {sequences}"
    return OutputLimit(
        num_left // times,
        num_left,
        is_reduced=num_left < MAX_OUTPUT,
        factors=f"{sequences} x {{}} x (1 + {params.logprobs or 0} logprobs)",
        times=times,
    )


def _num_shown(params: SamplingParams, num_tokens: int) -> int:
    """Return the number of values that an answer shows of `num_tokens` tokens of its prompts."""
    num_top = params.prompt_logprobs or 0
    num_shown = params.n * num_tokens * (1 + num_top)
    if num_shown > MAX_SHOWN:
        raise InvalidValue(
            f"n {params.n} x {num_tokens} prompt tokens x (1 + {num_top} prompt_logprobs) is {num_shown}; one answer "
            f"may show at most {MAX_SHOWN}. Lower n or prompt_logprobs, or send fewer or shorter prompts.",
            param="prompt_logprobs",
        )
    return num_shown


def check_fits(
    num_prompt: int,
    params: SamplingParams,
    *,
    max_model_len: int,
    max_num_seqs: int,
    num_blocks: int,
    block_size: int,
    output: OutputLimit = NO_OUTPUT_LIMIT,
) -> None:
    """Reject a request that could not be completed even as the only one; `params.max_tokens` is set. Any thread.

    The error names the largest number that passes all limits.

    Raises:
        InvalidValue: the prompt is empty, there are more sequences than `max_num_seqs`, or more output than `output`
            allows.
        ContextLengthExceeded: prompt and `max_tokens` exceed the context.
        KVCapacityExceeded: prompt and `max_tokens` do not fit the KV cache.
    """
    max_tokens, num_sequences = params.max_tokens, params.num_sequences
    assert max_tokens is not None, "admission sets max_tokens"
    if not num_prompt:
        raise InvalidValue("The prompt is empty; it must have at least one token.", param="prompt")
    if num_sequences > max_num_seqs:
        raise InvalidValue(
            f"The request needs {num_sequences} sequences; this server runs at most {max_num_seqs} at once. Lower "
            f"{params.num_sequences_param}, or start the server with a higher --max-num-seqs.",
            param=params.num_sequences_param,
        )
    left = max_model_len - num_prompt
    most = _most_tokens(num_prompt, num_sequences, num_blocks, block_size)
    room = min(left, most, output.most)
    name, value = ("min_tokens", params.min_tokens) if params.min_tokens > max(room, 0) else ("max_tokens", max_tokens)
    if value <= room:
        return
    if room == output.most < min(left, most):
        raise output.error(name, value)
    times = f"{num_sequences} x " if num_sequences > 1 else ""
    given = f"{num_prompt} prompt tokens + {times}{name} {value}"
    held = ", which the KV cache can hold" if most < left else ""
    cure = f"lower {name} to {room}{held}, or shorten the prompt" if room >= 1 else "shorten the prompt"
    if value > left:  # also if the KV cache is smaller: clients know what to do with a full context
        raise ContextLengthExceeded(
            f"{CONTEXT_WORDS.format(max_model_len)} {given} exceed it; {cure}.{CONTEXT_END}", param=name
        )
    raise KVCapacityExceeded(
        f"A request of {given} {CAPACITY_WORDS}, a KV cache of {num_blocks * block_size} tokens; {cure}, or start the "
        "server with a larger KV cache.",
        param=name,
    )


def check_told(told: Sequence[ToldChoice], params: SamplingParams, vocab_size: int) -> None:
    """Reject a request that cannot go on behind what was told of it; `params.max_tokens` is set. Any thread.

    Raises:
        InvalidValue: there is not one entry for each choice, all have ended, one is as long as it may be or has other
            ids than the vocabulary, or the choices are found among others when all of these have ended.
    """
    if params.is_ranked:
        raise InvalidValue("An answer of best_of or a beam search goes on from its prompt alone.", param="told")
    if len(told) != params.n:
        raise InvalidValue(f"told has {len(told)} choices; it must have one for each of n {params.n}.", param="told")
    going_on = [choice.token_ids for choice in told if not choice.has_ended]
    if not going_on:
        raise InvalidValue("All choices in told have ended; at least one must go on.", param="told")
    longest = max(map(len, going_on))
    if params.max_tokens is not None and longest >= params.max_tokens:
        raise InvalidValue(
            f"told has a choice of {longest} tokens that goes on; max_tokens {params.max_tokens} must be more.",
            param="told",
        )
    if any(token_ids and not 0 <= min(token_ids) <= max(token_ids) < vocab_size for token_ids in going_on):
        raise InvalidValue(f"Token ids in told must be between 0 and {vocab_size - 1}.", param="told")


def _most_tokens(num_prompt: int, num_sequences: int, num_blocks: int, block_size: int) -> int:
    """Return the largest max_tokens that fits the KV cache; below 1 if none does.

    Sequences share the full blocks of the prompt, and each has its own behind them. The last token of an output is
    sampled but not computed, so it needs no slot.
    """
    num_shared = num_prompt // block_size
    return (num_shared + (num_blocks - num_shared) // num_sequences) * block_size - num_prompt + 1


def _copy(params: SamplingParams) -> SamplingParams:
    """Return `params`, checked again, with copies of its containers."""
    return replace(
        params,
        stop=None if params.stop is None else params.stop_strings,
        stop_token_ids=None if params.stop_token_ids is None else tuple(params.stop_token_ids),
        logit_bias=None if params.logit_bias is None else dict(params.logit_bias),
    )


def _check_prompt(prompt_token_ids: Sequence[int], model: ModelInfo) -> None:
    num_prompt = len(prompt_token_ids)
    if num_prompt == 0:
        raise InvalidValue("The prompt is empty; it must have at least one token.", param="prompt")
    if num_prompt >= model.max_model_len:  # first, because the check of the ids takes long for millions of them
        what = f"The prompt has {num_prompt} tokens, and may have at most {model.max_model_len - 1}"
        raise too_long(model.max_model_len, what, num_tokens=num_prompt)
    if min(prompt_token_ids) < 0 or max(prompt_token_ids) >= model.vocab_size:
        wrong = next(token_id for token_id in prompt_token_ids if not 0 <= token_id < model.vocab_size)
        raise InvalidValue(
            f"prompt contains the token id {wrong}; it must be between 0 and {model.vocab_size - 1}.", param="prompt"
        )
    if num_prompt > model.kv_capacity_tokens:
        error = KVCapacityExceeded(
            f"The prompt's length of {num_prompt} tokens {CAPACITY_WORDS}, a KV cache of {model.kv_capacity_tokens} "
            "tokens; shorten the prompt, or start the server with a larger KV cache.",
            param="prompt",
        )
        error.num_prompt_tokens = num_prompt
        raise error


def _check_scored(num_prompt: int, model: ModelInfo) -> None:
    if not model.reads_prompts:
        raise UnsupportedParameter(
            "prompt_logprobs is not supported on this device, it needs a CPU; leave it out.", param="prompt_logprobs"
        )
    if num_prompt > MAX_SCORED_TOKENS:
        raise InvalidValue(
            f"The prompt has {num_prompt} tokens; with prompt_logprobs it may have at most {MAX_SCORED_TOKENS}, "
            "as with echo and logprobs. Shorten the prompt, or leave them out.",
            param="prompt_logprobs",
        )


def _check_vocabulary(params: SamplingParams, vocab_size: int) -> None:
    if params.top_k is not None and params.top_k > vocab_size:
        raise InvalidValue(
            f"top_k is {params.top_k}; it must be at most {vocab_size}, the size of the vocabulary.", param="top_k"
        )
    for name, ids in (("logit_bias", params.logit_bias or ()), ("stop_token_ids", params.stop_token_ids or ())):
        if (largest := max(ids, default=0)) >= vocab_size:
            raise InvalidValue(
                f"{name} contains the token id {largest}; it must be between 0 and {vocab_size - 1}.", param=name
            )
