"""Requests and commands, which the event loop sends to the engine thread, as plain immutable data."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum

from app.contract.engine_picture import Watch
from app.contract.grammar import Constraint, Grammar, ReasoningMarks
from app.contract.sampling_params import SamplingParams
from app.contract.stored_prefix import StoredPrefix


class PoolingKind(StrEnum):
    """How the hidden states of a prompt become one vector: their mean, or the state of the last token."""

    MEAN = "mean"
    LAST = "last"


@dataclass(frozen=True, slots=True)
class Pooling:
    """The vector that a prompt becomes: its first `num_dimensions` numbers (None: all), scaled to length 1 or not."""

    kind: PoolingKind = PoolingKind.MEAN
    num_dimensions: int | None = None
    is_normalized: bool = True


@dataclass(frozen=True, slots=True)
class ToldChoice:
    """The part of a choice that was told before its request was submitted, by an earlier process: its first tokens, and
    whether it had ended.
    """

    token_ids: tuple[int, ...] = ()
    has_ended: bool = False


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One client call, checked and tokenized, independent of its transport.

    `params` is resolved: no `None` in a model-dependent field, `max_tokens` and `seed` set (see `admission.admit`).
    Times are monotonic seconds: the request must start by `start_deadline` and be complete by `deadline`. Requests with
    a lower `priority` are scheduled earlier. KV blocks are shared only between requests of the same `tenant` (the name
    of the API key) and `cache_salt`. The scheduler orders and limits requests by `account`. `shown_token_ids` are
    special tokens that the text of the answer contains, for its parsers.

    An answer satisfies `grammar`, which is compiled and leased until the request ends (see text/grammar/cache.py). With
    `reasoning` a block between these marks may come before the grammar, and a budget limits it. A request with
    `pooling` generates nothing: its prompt becomes a vector. With `is_prompt_only` an answer has no tokens, and ends
    with `length` when its prompt has been computed. The `max_tokens` of both is 1, since a step that computes the end
    of a prompt always samples.

    A request that was interrupted goes on with `told`, one entry for each choice: told tokens are computed like those
    of a prompt, and events tell what comes behind them. It is empty for a new request, for beams, and with `best_of`.
    `stored` has keys and values of the beginning of a prompt, for the engine to take.
    """

    id: str
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    arrival_time: float
    start_deadline: float | None = None
    deadline: float | None = None
    priority: int = 0
    tenant: str | None = None
    cache_salt: str | None = None
    account: str = ""
    shown_token_ids: frozenset[int] = frozenset()
    grammar: Grammar | None = None
    reasoning: ReasoningMarks | None = None
    pooling: Pooling | None = None
    is_prompt_only: bool = False
    told: tuple[ToldChoice, ...] = ()
    stored: StoredPrefix | None = field(default=None, compare=False)

    @property
    def constraint(self) -> Constraint | None:
        """The limits on the tokens that may be sampled; None if there are none."""
        budget = None if self.reasoning is None else self.params.thinking_token_budget
        if self.grammar is None and budget is None:
            return None
        return Constraint(self.grammar, self.reasoning, budget)

    def for_readers(self) -> EngineRequest:
        """Return the request for those who read its answer: without what only generating needs, which can be large."""
        params = replace(self.params, structured_outputs=None, logit_bias=None, stop=None, stop_token_ids=None)
        return replace(self, params=params, grammar=None, stored=None)


@dataclass(frozen=True, slots=True)
class Submit:
    """Add a request to the queue."""

    request: EngineRequest


@dataclass(frozen=True, slots=True)
class Abort:
    """Drop a request and free its blocks; unknown and finished ids are ignored."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Pause:
    """Stop scheduling a request; it keeps its blocks until others need them."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Resume:
    """Schedule a paused request again."""

    request_id: str


EngineCommand = Submit | Abort | Pause | Resume | Watch
