"""How much one step may compute: a number of tokens, limited by memory, and a time, limited by `--itl-target`.

Decodes always run. Prompt chunks fill the rest of the step, sized by the predicted time of the whole step, so that
each answer gets its next token within `--itl-target` while other requests' prompts are computed. Where decodes alone
take nearly that long, prompts still get their share of the time.
"""

from __future__ import annotations

from math import inf

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
    that target for prompt chunks (the brown-out sets it). `num_over_target` counts steps with decodes that took longer
    than the target.
    """

    def __init__(self, max_tokens: int, itl_target: float) -> None:
        self.cost = StepCost()
        self.scale = 1.0
        self.num_over_target = 0
        self._max_tokens = self._tokens = max_tokens
        self._itl_target = itl_target
        self._last_decodes, self._last_decode_s = 1, inf
        self._num_good_steps = 0
        self._recovery_steps = RECOVERY_STEPS // 2

    @property
    def tokens(self) -> int:
        """The most tokens of one step at present."""
        return self._tokens

    def halve(self) -> bool:
        """Allow half as many tokens after a step ran out of memory, until enough steps have succeeded.

        False if the budget is at its minimum.
        """
        before, self._tokens = self._tokens, max(self._tokens // 2, min(MIN_TOKENS, self._max_tokens))
        self._num_good_steps = 0
        self._recovery_steps = min(2 * self._recovery_steps, MAX_RECOVERY_STEPS)
        return self._tokens < before

    @property
    def target_s(self) -> float:
        """The seconds that a step with decodes should take at most; infinite without a target."""
        return self._itl_target * self.scale if self.has_target else inf

    @property
    def has_target(self) -> bool:
        """Whether the time of steps with decodes is limited."""
        return self._itl_target > 0.0

    def limit_s(self, num_decodes: int, num_attended: int) -> float:
        """Return the seconds that a step with prompts may take; infinite if only tokens are limited.

        The step has `num_decodes` decodes, which attend to `num_attended` tokens.
        """
        if not num_decodes:
            return ALONE_S
        if not self.cost.is_known:
            return self.target_s
        decode_s = min(self.cost.predict(num_decodes, num_attended), self._most_decode_s(num_decodes))
        if not self.has_target:
            return inf
        enough_s = max(MAX_STRETCH * decode_s, SHORT_SHARE * self._itl_target)
        wanted_s = min(max(self._itl_target, MIN_STRETCH * decode_s), enough_s)
        return max(self.scale * wanted_s, decode_s / (1.0 - MIN_SHARE))

    def _most_decode_s(self, num_decodes: int) -> float:
        """An upper bound of the seconds for so many decodes, from the last step of decodes alone: time per decode."""
        return self._last_decode_s * max(1.0, num_decodes / self._last_decodes)

    def is_for_decodes(self, number: int) -> bool:
        """Whether the step with this number, which has decodes, is to have no prompts."""
        return self.has_target and number % DECODE_INTERVAL == 0

    def chunk(
        self, num_left: int, start: int, num_tokens: int, num_attended: int, limit_s: float, at_least: int = 0
    ) -> int:
        """Return how many of a prompt's `num_left` tokens, from position `start` on, the step may take in.

        The step already has `num_tokens` that attend to `num_attended`, and may take `limit_s`. The result is at least
        `at_least`, or what is left of the prompt or of the step's tokens, if that is less.
        """
        room = min(num_left, self._tokens - num_tokens)
        if room <= 0 or limit_s == inf:
            return max(room, 0)
        if not self.cost.is_known:
            return min(room, FIRST_CHUNK)
        return max(self.cost.most_tokens(limit_s, num_tokens, num_attended, start, room), min(room, at_least))

    def observe(
        self, num_tokens: int, num_attended: int, seconds: float, had_decodes: bool, is_mixed: bool = False
    ) -> None:
        """Learn from a step that succeeded: what the step computed and the seconds it took (0: not measured).

        With `is_mixed` the step was not one decode per running sequence: it had prompts, or an account sat it out.
        """
        self.cost.observe(num_tokens, num_attended, seconds)
        if seconds > 0.0 and had_decodes and not is_mixed:
            self._last_decodes, self._last_decode_s = num_tokens, seconds
        if had_decodes and 0.0 < self._itl_target < seconds:
            self.num_over_target += 1
        if self._tokens < self._max_tokens:
            self._num_good_steps += 1
            if self._num_good_steps >= self._recovery_steps:
                self._tokens = min(2 * self._tokens, self._max_tokens)
                self._num_good_steps = 0
