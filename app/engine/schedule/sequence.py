"""A sequence: one growing list of token ids, and the states it goes through.

    [0, num_computed) in the KV cache | [num_computed, num_scheduled) in steps in flight | [.., num_tokens) to do

`ready` says whether its readers want tokens. A sequence that is not ready is not scheduled: WAITING, PREEMPTED and
PAUSED ones stay where they are. A RUNNING one that is not ready is about to pause: it was preempted and first has to
gain the token that lets it be a victim again, or a paused one could hold blocks that nobody may take.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from app.messages import EngineRequest

# In a plan: the token that a step in flight is still sampling; whoever computes the plan has it already.
UNKNOWN_TOKEN_ID = -1


class SequenceStatus(Enum):
    """Where a sequence stands."""

    WAITING = "waiting"  # not started
    RUNNING = "running"  # has blocks, and a row once it has been part of a step
    PAUSED = "paused"  # has blocks, no row
    PREEMPTED = "preempted"  # blocks dropped; starts again with all its tokens as prompt
    FINISHED = "finished"  # holds nothing (its blocks may still be fenced)


WAITING, RUNNING, PAUSED, PREEMPTED, FINISHED = SequenceStatus

TRANSITIONS: dict[SequenceStatus, frozenset[SequenceStatus]] = {
    WAITING: frozenset({RUNNING, FINISHED}),
    RUNNING: frozenset({PAUSED, PREEMPTED, FINISHED}),
    PAUSED: frozenset({RUNNING, PREEMPTED, FINISHED}),
    PREEMPTED: frozenset({RUNNING, FINISHED}),
    FINISHED: frozenset(),
}


@dataclass(slots=True, eq=False)
class Sequence:
    """One growing list of token ids with its block table; made and changed by the scheduler alone.

    `num_tokens` counts the tokens that are known and those that steps in flight are sampling. `max_slots` is the
    most slots it can ever use: the last token of an answer is never computed, so it needs none.
    """

    id: int
    request: EngineRequest
    choice: int
    max_slots: int
    prompt_token_ids: tuple[int, ...]
    num_tokens: int
    arrival_time: float
    sort_key: tuple[float, ...] = ()  # set by Scheduler.add from the policy
    status: SequenceStatus = WAITING
    ready: bool = True
    output_token_ids: list[int] = field(default_factory=list)
    num_scheduled: int = 0
    num_computed: int = 0
    row: int | None = None
    block_table: list[int] = field(default_factory=list)
    last_step: int = 0  # the newest step it was part of
    first_scheduled_time: float | None = None
    num_preemptions: int = 0
    is_protected: bool = False  # was a victim, and has gained no token since

    @classmethod
    def from_request(cls, sequence_id: int, request: EngineRequest) -> Sequence:
        """Return a new WAITING sequence for choice 0 of `request`, whose `params.max_tokens` is set."""
        max_tokens = request.params.max_tokens
        assert max_tokens is not None, "admission sets max_tokens"
        num_prompt = len(request.prompt_token_ids)
        return cls(
            id=sequence_id,
            request=request,
            choice=0,
            max_slots=num_prompt + max_tokens - 1,
            prompt_token_ids=request.prompt_token_ids,
            num_tokens=num_prompt,
            arrival_time=request.arrival_time,
        )

    @property
    def num_left(self) -> int:
        """Tokens to compute that no step has been given yet."""
        return min(self.num_tokens, self.max_slots) - self.num_scheduled

    def move_to(self, status: SequenceStatus) -> None:
        """Change the state.

        Raises:
            ValueError: `TRANSITIONS` has no such way; nothing was changed.
        """
        if status not in TRANSITIONS[self.status]:
            raise ValueError(f"sequence {self.id} cannot go from {self.status.value} to {status.value}")
        self.status = status

    def tokens(self, start: int, end: int) -> tuple[int, ...]:
        """Return the token ids at positions `start` to `end - 1`; one that is still being sampled is unknown."""
        first = start - len(self.prompt_token_ids)
        if first < 0:
            answered = end - len(self.prompt_token_ids)
            prompt = self.prompt_token_ids[start:end]
            return prompt + tuple(self.output_token_ids[:answered]) if answered > 0 else prompt
        if first < len(self.output_token_ids):
            return tuple(self.output_token_ids[first : first + end - start])
        return (UNKNOWN_TOKEN_ID,)

    def check_integrity(self, num_promised: int, block_size: int) -> None:
        """Check an unfinished sequence against itself; steps in flight are sampling `num_promised` tokens of it.

        Raises:
            AssertionError: counts, state and blocks do not fit together.
        """
        name, num_slots = f"sequence {self.id}", len(self.block_table) * block_size
        num_known = len(self.prompt_token_ids) + len(self.output_token_ids)
        assert self.num_tokens == num_known + num_promised, f"{name}: tokens are miscounted"
        assert 0 <= self.num_computed <= self.num_scheduled <= self.num_tokens, f"{name}: computed too much"
        assert self.num_scheduled <= self.max_slots, f"{name}: computed more than it can use"
        if self.status in (RUNNING, PAUSED):
            assert self.num_scheduled <= num_slots, f"{name}: tokens without slots"
            assert self.num_tokens - 1 <= num_slots, f"{name}: a prefill without all its blocks"
            assert num_slots < self.max_slots + block_size, f"{name}: blocks it cannot use"
        else:
            assert not num_slots and not self.num_scheduled, f"{name}: holds blocks"
        assert self.ready or self.status is not RUNNING or self.is_protected, f"{name}: does not pause"
        assert not (self.status is PAUSED and self.is_protected), f"{name}: paused, and nobody may take its blocks"
