"""What a scheduler may hand out."""

from __future__ import annotations

from dataclasses import dataclass, fields

from app.admission import num_blocks_needed
from app.errors import ConfigurationError, ContextLengthExceeded, InvalidValue, KVCapacityExceeded
from app.messages import EngineRequest

_LOWEST = {"run_ahead": 0, "num_host_blocks": 0, "itl_target": 0, "enable_prefix_caching": 0}


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerLimits:
    """What the scheduler may hand out; `num_blocks` counts usable blocks (block 0 is not among them).

    `run_ahead` is how many steps may be in flight when the next one is planned: 0 where a step's tokens are read
    before the next step starts. At most `max_num_batched_tokens` sequences run, whatever `max_num_seqs` is.
    `num_host_blocks` are in host memory, for what loses its place on the device. `itl_target` is the time in seconds
    that a step may take while answers are being written; 0 is no limit.

    Raises:
        ConfigurationError: a limit below 1 (those that may be off: below 0).
    """

    num_blocks: int
    block_size: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    run_ahead: int = 0
    num_host_blocks: int = 0
    enable_prefix_caching: bool = True
    itl_target: float = 0.0

    @property
    def max_running(self) -> int:
        """The most sequences that run at once."""
        return min(self.max_num_seqs, self.max_num_batched_tokens)

    def __post_init__(self) -> None:
        for limit in fields(self):
            value, lowest = getattr(self, limit.name), _LOWEST.get(limit.name, 1)
            if value < lowest:
                raise ConfigurationError(f"{limit.name} is {value}; it must be at least {lowest}.", param=limit.name)


def check_fits_alone(request: EngineRequest, limits: SchedulerLimits, capacity: int) -> None:
    """Refuse a request that could never end, even with nobody else there; `capacity` is in blocks.

    Raises:
        InvalidValue: the prompt is empty, or there are fewer seats than sequences.
        ContextLengthExceeded: prompt and `max_tokens` exceed the context.
        KVCapacityExceeded: they do not fit the pool.
    """
    num_prompt, params = len(request.prompt_token_ids), request.params
    assert params.max_tokens is not None, "admission sets max_tokens"
    max_slots = num_prompt + params.max_tokens - 1
    if not num_prompt:
        raise InvalidValue("The prompt is empty; it must have at least one token.", param="prompt")
    if params.num_sequences > limits.max_running:
        raise InvalidValue(
            f"{params.num_sequences} sequences were asked for; at most {limits.max_running} run at once.", param="n"
        )
    times = f"{params.num_sequences} x " if params.num_sequences > 1 else ""
    given = f"{num_prompt} prompt tokens + {times}max_tokens {params.max_tokens} exceed"
    if max_slots >= limits.max_model_len:
        raise ContextLengthExceeded(
            f"{given} the context of {limits.max_model_len} tokens; shorten the prompt or lower max_tokens.",
            param="max_tokens",
        )
    if num_blocks_needed(num_prompt, max_slots, params.num_sequences, limits.block_size) > capacity:
        raise KVCapacityExceeded(
            f"{given} the KV cache of {capacity * limits.block_size} tokens; shorten the prompt, lower max_tokens, or "
            "start the server with a larger KV cache.",
            param="max_tokens",
        )
