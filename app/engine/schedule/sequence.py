"""A sequence: one growing list of token ids with its blocks in the KV cache.

    [0, num_computed) in the KV cache | [num_computed, num_scheduled) in steps in flight | [.., num_tokens) to do

A request has one sequence for each of its choices, candidates or beams; they share a `SequenceGroup`, which has the
state. A sequence alone can only end.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from app.contract.requests import EngineRequest
from app.engine.schedule.kv.prefix_cache import BlockContent
from app.engine.schedule.speculation.proposer import Proposer
from app.engine.schedule.step_plan import SampleRow

if TYPE_CHECKING:
    from app.engine.schedule.group import SequenceGroup

NO_ROW = SampleRow(0, 0)
# In a plan: the token that a step in flight is still sampling; the device that computes the plan has it already.
UNKNOWN_TOKEN_ID = -1


class SequenceStatus(StrEnum):
    """The state of a sequence; the open ones of a group share theirs."""

    WAITING = "waiting"  # not started
    RUNNING = "running"  # has blocks, and rows for those that have been part of a step
    PAUSED = "paused"  # has blocks, no rows
    PREEMPTED = "preempted"  # blocks dropped; starts again with all its tokens as prompt
    SWAPPED = "swapped"  # blocks in host memory
    FINISHED = "finished"  # holds nothing (its blocks may still be fenced)

    __hash__ = str.__hash__  # Enum's own is Python, and every change of state is looked up


WAITING, RUNNING, PAUSED, PREEMPTED, SWAPPED, FINISHED = SequenceStatus

TRANSITIONS: dict[SequenceStatus, frozenset[SequenceStatus]] = {
    WAITING: frozenset({RUNNING, FINISHED}),
    RUNNING: frozenset({PAUSED, PREEMPTED, SWAPPED, FINISHED}),
    PAUSED: frozenset({RUNNING, PREEMPTED, SWAPPED, FINISHED}),
    PREEMPTED: frozenset({RUNNING, FINISHED}),
    SWAPPED: frozenset({RUNNING, PREEMPTED, FINISHED}),  # PREEMPTED: the step that was to copy it out failed
    FINISHED: frozenset(),
}
HOLDING = (RUNNING, PAUSED)
"""The states with KV blocks."""


@dataclass(slots=True, eq=False)
class Sequence:
    """One growing list of token ids with its block table; made and changed by the scheduler alone.

    Only its own methods change its counts: num_computed <= num_scheduled <= num_tokens at any
    time; `check_integrity` asserts it.

    `num_tokens` counts the tokens that are known and those that steps in flight are sampling; accepted draft tokens
    count when their step is done. `max_slots` is the most slots the sequence can ever use: the last token of an answer
    is never computed, so it needs none. `contents` describes the full blocks from the first on, as far as they were
    looked up; `contents` outlives the blocks.
    """

    id: int
    group: SequenceGroup
    choice: int
    max_slots: int
    prompt_token_ids: tuple[int, ...]
    num_prompt: int
    num_tokens: int
    output_token_ids: list[int] = field(default_factory=list)
    num_scheduled: int = 0
    num_computed: int = 0
    row: int | None = None
    sample_row: SampleRow = NO_ROW  # its row and id, while it has a row
    block_table: list[int] = field(default_factory=list)
    host_table: list[int] = field(default_factory=list)  # blocks in host memory while SWAPPED
    contents: list[BlockContent] = field(default_factory=list)
    num_kept: int = 0  # blocks of the table, from the first on, that were offered to the prefix cache
    last_step: int = 0  # the newest step it was part of
    is_finished: bool = False
    proposer: Proposer | None = None  # from the first draft on
    pooled: bytes = b""  # of a request with pooling: the vector of the tokens up to `num_computed`
    scores: list[bytes] = field(default_factory=list)  # of a prompt that is scored: rows of log-probabilities
    num_scored: int = 0  # tokens whose successors are scored

    @classmethod
    def first_of(cls, group: SequenceGroup, sequence_id: int) -> Sequence:
        """Return the first sequence of `group`, whose `params.max_tokens` is set."""
        prompt, max_tokens = group.request.prompt_token_ids, group.request.params.max_tokens
        assert max_tokens is not None, "admission sets max_tokens"
        return cls(sequence_id, group, 0, len(prompt) + max_tokens - 1, prompt, len(prompt), len(prompt))

    @property
    def request(self) -> EngineRequest:
        """The request of the group."""
        return self.group.request

    @property
    def status(self) -> SequenceStatus:
        """The state of the group."""
        return FINISHED if self.is_finished else self.group.status

    @property
    def num_left(self) -> int:
        """Tokens to compute that are in no step yet."""
        return min(self.num_tokens, self.max_slots) - self.num_scheduled

    @property
    def num_to_score(self) -> int:
        """Tokens of the prompt whose successors must still be scored; the last one has none."""
        return 0 if self.request.params.prompt_logprobs is None else self.num_prompt - 1 - self.num_scored

    def may_skip(self, num_tokens: int) -> bool:
        """Return whether keys and values are all that is needed of the first `num_tokens`: cached blocks will do."""
        if self.request.pooling is not None:
            return False
        return num_tokens <= self.num_scored or not self.num_to_score

    def score(self, rows: bytes, count: int) -> None:
        """Append the scores of the next `count` tokens; they are kept when the sequence is preempted."""
        self.scores.append(rows)
        self.num_scored += count

    def tokens(self, start: int, end: int) -> tuple[int, ...]:
        """Return the token ids at positions `start` to `end - 1`; UNKNOWN_TOKEN_ID for one still being sampled."""
        first = start - self.num_prompt
        if first < 0:
            num_output = end - self.num_prompt
            prompt = self.prompt_token_ids[start:end]
            return prompt + tuple(self.output_token_ids[:num_output]) if num_output > 0 else prompt
        if first < len(self.output_token_ids):
            return tuple(self.output_token_ids[first : first + end - start])
        return (UNKNOWN_TOKEN_ID,)

    def go_on_behind(self, token_ids: Iterable[int]) -> None:
        """Take the tokens that an earlier process has generated; for a new sequence."""
        self.output_token_ids += token_ids
        self.num_tokens = self.num_prompt + len(self.output_token_ids)

    def fork(self, sequence_id: int, choice: int) -> Sequence:
        """Return a new sequence with the same tokens and counts, without blocks and row."""
        return Sequence(
            id=sequence_id,
            group=self.group,
            choice=choice,
            max_slots=self.max_slots,
            prompt_token_ids=self.prompt_token_ids,
            num_prompt=self.num_prompt,
            num_tokens=self.num_tokens,
            output_token_ids=list(self.output_token_ids),
            num_scheduled=self.num_scheduled,
            num_computed=self.num_computed,
            contents=list(self.contents),
            num_kept=self.num_kept,
            last_step=self.last_step,
        )

    def schedule_to(self, end: int) -> None:
        """Note that a step computes the tokens up to `end`."""
        assert self.num_scheduled < end <= self.num_tokens, f"sequence {self.id}: scheduled to {end}"
        self.num_scheduled = end

    def schedule_last(self) -> int:
        """Note that a step computes the last token and samples the next one; return the position of the last."""
        start = self.num_scheduled
        self.num_scheduled = start + 1
        self.num_tokens += 1
        return start

    def promise(self) -> None:
        """Note that a step samples the next token, which counts from now on."""
        self.num_tokens += 1

    def retract(self) -> None:
        """Note that the promised token will not come, or not from that step."""
        assert self.num_tokens > self.num_prompt + len(self.output_token_ids), f"sequence {self.id}: none is expected"
        self.num_tokens -= 1

    def gain(self, token_id: int) -> None:
        """Append the next token, which was promised or accepted before."""
        self.output_token_ids.append(token_id)

    def accept(self, num_drafts: int) -> None:
        """Count `num_drafts` accepted draft tokens and the one sampled after them."""
        self.num_tokens += num_drafts + 1
        if self.block_table:  # else the sequence lost them meanwhile, and computes its tokens again
            self.num_scheduled += num_drafts

    def computed_to(self, end: int) -> None:
        """Note that keys and values of the tokens up to `end` are in the KV cache."""
        assert end <= self.num_scheduled, f"sequence {self.id}: computed too much"
        self.num_computed = end

    def start_at(self, num_tokens: int, num_kept: int = 0) -> None:
        """Note that the blocks hold the first `num_tokens` tokens; `num_kept` full blocks are in the prefix cache."""
        self.num_scheduled = self.num_computed = num_tokens
        self.num_kept = num_kept

    def copy_counts(self, leader: Sequence) -> None:
        """Note that the blocks hold what those of `leader` hold."""
        self.num_scheduled = leader.num_scheduled
        self.num_computed, self.num_kept = leader.num_computed, leader.num_kept
        self.contents = list(leader.contents)

    def check_integrity(self, num_promised: int, block_size: int) -> None:
        """Assert that counts, state and blocks fit; steps in flight are sampling `num_promised` tokens."""
        name, status = f"sequence {self.id}", self.group.status
        num_slots = len(self.block_table or self.host_table) * block_size
        num_known = self.num_prompt + len(self.output_token_ids)
        assert self.num_tokens == num_known + num_promised, f"{name}: tokens are miscounted"
        assert 0 <= self.num_computed <= self.num_scheduled <= self.num_tokens, f"{name}: computed too much"
        assert self.num_scheduled <= self.max_slots, f"{name}: computed more than it can use"
        assert num_slots < self.max_slots + block_size, f"{name}: blocks it cannot use"
        assert self.num_kept <= len(self.contents), f"{name}: blocks in the cache without a description"
        assert not self.block_table or status in HOLDING, f"{name}: holds blocks"
        assert not self.host_table or status is SWAPPED, f"{name}: holds host blocks"
        assert self.num_scheduled <= num_slots, f"{name}: tokens without slots"
        if self.block_table:
            assert self.num_tokens - 1 <= num_slots, f"{name}: a prefill without all its blocks"
