"""The limits of a scheduler: blocks, sequences, tokens and time."""

from __future__ import annotations

from dataclasses import dataclass, fields

from app.config.settings import SchedulerConfig
from app.contract.errors import ConfigurationError

_MAY_BE_OFF = ("run_ahead", "num_host_blocks", "itl_target", "enable_prefix_caching", "speculative_ngram")


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerLimits:
    """The scheduler's limits; `num_blocks` counts usable blocks (block 0 is not among them).

    `run_ahead` is how many steps may be in flight when the next one is planned: 0 where a step's tokens are read
    before the next step starts. At most `max_num_batched_tokens` sequences run, whatever `max_num_seqs` is.
    `num_host_blocks` are in host memory, for swapped and evicted blocks. `itl_target` is the time in seconds that a
    step with decodes may take; 0 is no limit. `speculative_ngram` is the longest draft in tokens; 0 is none.

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
    speculative_ngram: int = 0

    @property
    def max_running(self) -> int:
        """The most sequences that run at once."""
        return min(self.max_num_seqs, self.max_num_batched_tokens)

    def __post_init__(self) -> None:
        for limit in fields(self):
            value, lowest = getattr(self, limit.name), int(limit.name not in _MAY_BE_OFF)
            if value < lowest:
                raise ConfigurationError(f"{limit.name} is {value}; it must be at least {lowest}.", param=limit.name)


def max_logit_rows(limits: SchedulerConfig | SchedulerLimits) -> int:
    """Return the most tokens that a step samples: one for each running sequence, and a whole draft. Any thread."""
    return min(limits.max_num_seqs + limits.speculative_ngram, limits.max_num_batched_tokens)
