"""How much one step may compute: a number of tokens, limited by memory, and a time, limited by `--itl-target`.

Decodes always run. Prompt chunks fill the rest of the step, sized by the predicted time of the whole step, so that
each answer gets its next token within `--itl-target` while other requests' prompts are computed. Where decodes alone
take nearly that long, prompts still get their share of the time.
"""

from __future__ import annotations

from math import inf

from app.contract.engine_counts import BudgetCounts
from app.engine.schedule.shares import Rests
from app.engine.schedule.step_builder import StepPlanBuilder
from app.engine.schedule.step_cost import StepCost

# The limit without decodes: aborts and new requests wait for the end of the step.
ALONE_S = 1.0
# A step may always take this many times as long as its decodes alone: on a model whose decodes take the whole target,
# chunks within the target would be tiny, and first tokens would come seconds later while the target is missed anyway.
MIN_STRETCH = 2.5
# Even below the target a step takes at most this many times as long as its decodes alone, or this share of the target,
# whichever is more: a longer step would save little of the fixed cost, and new requests wait for its end.
MAX_STRETCH = 20.0
SHORT_SHARE = 0.4
# The least share of a step's time that is left for prompts, whatever limits them.
MIN_SHARE = 0.25
# One step of so many has no prompts while sequences decode, to measure what decodes alone take: steps that all take
# the target do not show that.
DECODE_INTERVAL = 32
# The first chunk of a step has at least as many tokens (or the prompt's rest): far into a long prompt few tokens take
# long, and a step of few tokens costs little more than a step without them.
MIN_CHUNK = 16
# Until the cost is known: short even on a slow machine, and one long prompt gives enough steps to learn from.
FIRST_CHUNK = 64
# Out of memory halves the budget down to this, the least that `--max-num-batched-tokens` may be.
MIN_TOKENS = 8
# Steps without an out-of-memory error after which the budget doubles again; twice as many each time it was halved, or
# a machine with slightly too little memory would lose a step again and again.
RECOVERY_STEPS = 100
MAX_RECOVERY_STEPS = 100_000


class StepBudget:
    """The limits of the next step. Engine thread only; pure.

    `max_tokens` bounds a step's tokens, `itl_target` its seconds while sequences decode (0: no bound). `scale` shrinks
    that target for prompt chunks (the brown-out sets it). `counts` has the steps with decodes that took longer than the
    target. `rests` are those of accounts, under the policy `fair`.
    """

    def __init__(
        self, max_tokens: int, itl_target: float, rests: Rests | None = None, cost: StepCost | None = None
    ) -> None:
        self.cost = cost or StepCost()
        self.rests = rests
        self.scale = 1.0
        self.counts = BudgetCounts()
        self.tokens = max_tokens  # the most of one step at present
        self._max_tokens = max_tokens
        self._itl_target = itl_target
        self._last_decodes, self._last_decode_s = 1, inf
        self._num_steps = 0  # that no account sat out
        self._num_good_steps = 0
        self._recovery_steps = RECOVERY_STEPS // 2

    def halve(self) -> bool:
        """Allow half as many tokens after a step ran out of memory, until enough steps have succeeded.

        False if the budget is at its minimum.
        """
        before, self.tokens = self.tokens, max(self.tokens // 2, min(MIN_TOKENS, self._max_tokens))
        self._num_good_steps = 0
        self._recovery_steps = min(2 * self._recovery_steps, MAX_RECOVERY_STEPS)
        return self.tokens < before

    @property
    def target_s(self) -> float:
        """The seconds that a step with decodes should take at most; infinite without a target."""
        return self._itl_target * self.scale if self.has_target else inf

    @property
    def has_target(self) -> bool:
        """Whether the time of steps with decodes is limited."""
        return self._itl_target > 0.0

    def is_for_decodes(self, builder: StepPlanBuilder) -> bool:
        """Return whether a step is to have no prompts; never one that an account sits out: it measures too few decodes.

        To be called once for each step, when the decodes are in `builder`.
        """
        if builder.resting is not None:
            return False
        self._num_steps += 1
        return self.has_target and builder.has_decodes and self._num_steps % DECODE_INTERVAL == 0

    def chunk_size(self, num_left: int, start: int, builder: StepPlanBuilder, at_least: int = 0) -> int:
        """Return how many of a prompt's `num_left` tokens, from position `start` on, the step may take in.

        The result is at least `at_least`, or what is left of the prompt or of the step's tokens, if that is less.
        """
        if builder.limit_s is None:
            builder.limit_s = self._limit_s(builder)
        return self._most_tokens(num_left, start, builder, builder.limit_s, at_least)

    def draft_size(self, num_left: int, start: int, builder: StepPlanBuilder) -> int:
        """Return how many of `num_left` draft tokens, from position `start` on, the step may take in."""
        return self._most_tokens(num_left, start, builder, self.target_s, 0)

    def has_room(self, builder: StepPlanBuilder, start: int) -> bool:
        """Return whether the step may take another chunk, from `start` on; else a group would hold unused blocks."""
        return not builder.has_chunks or self.chunk_size(1, start, builder) > 0

    def observe(self, builder: StepPlanBuilder, seconds: float) -> None:
        """Learn from the step of `builder`, which succeeded: the seconds it took (0: not measured)."""
        self.cost.observe(builder.num_tokens, builder.num_attended, seconds)
        if self.rests is not None:
            self.rests.observe(seconds, builder.resting)
        # One decode per running sequence: no prompts, and no account sat the step out.
        if seconds > 0.0 and builder.has_decodes and not builder.has_chunks and builder.resting is None:
            self._last_decodes, self._last_decode_s = builder.num_tokens, seconds
        if builder.has_decodes and 0.0 < self._itl_target < seconds:
            self.counts.num_over_target += 1
        if self.tokens < self._max_tokens:
            self._num_good_steps += 1
            if self._num_good_steps >= self._recovery_steps:
                self.tokens = min(2 * self.tokens, self._max_tokens)
                self._num_good_steps = 0

    def _limit_s(self, builder: StepPlanBuilder) -> float:
        """Return the seconds that a step, which has no prompts yet, may take with prompts; infinite: no limit."""
        limit_s = self._limit_with_decodes_s(builder) if builder.has_decodes else ALONE_S
        if self.rests is not None and builder.resting is not None:
            return min(limit_s, self.rests.limit_s)
        return limit_s

    def _limit_with_decodes_s(self, builder: StepPlanBuilder) -> float:
        if not self.cost.is_known:
            return self.target_s
        # At most the time per decode of the last step of decodes alone.
        last_s = self._last_decode_s * max(1.0, builder.num_tokens / self._last_decodes)
        decode_s = min(self.cost.predict(builder.num_tokens, builder.num_attended), last_s)
        if not self.has_target:
            return inf
        enough_s = max(MAX_STRETCH * decode_s, SHORT_SHARE * self._itl_target)
        wanted_s = min(max(self._itl_target, MIN_STRETCH * decode_s), enough_s)
        return max(self.scale * wanted_s, decode_s / (1.0 - MIN_SHARE))

    def _most_tokens(self, num_left: int, start: int, builder: StepPlanBuilder, limit_s: float, at_least: int) -> int:
        room = min(num_left, builder.num_left)
        if room <= 0 or limit_s == inf:
            return max(room, 0)
        if not self.cost.is_known:
            return min(room, FIRST_CHUNK)
        fitting = self.cost.most_tokens(limit_s, builder.num_tokens, builder.num_attended, start, room)
        return max(fitting, min(room, at_least))
