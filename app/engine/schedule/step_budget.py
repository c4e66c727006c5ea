"""How much one step may compute: a number of tokens that memory bears, and a time that people bear.

Decodes always run. Prompt chunks fill what is left of the step, sized by the predicted time of the whole step, so that
who is being answered gets the next token within `--itl-target` while others' prompts are computed.
"""

from __future__ import annotations

from app.engine.schedule.step_cost import StepCost

# Nobody waits for a next token, but aborts and newcomers wait for the end of the step.
ALONE_S = 1.0
# The first chunk of a step has at least as many tokens (or the prompt's rest): where decodes alone take longer than
# the target, prompts must still move on. A step of few tokens costs little more than one without them.
MIN_CHUNK = 16
# Before the cost is known: short even on a slow machine, and enough steps to learn from in one long prompt.
FIRST_CHUNK = 64
# Out of memory halves the budget down to this, the least that `--max-num-batched-tokens` may be.
MIN_TOKENS = 8
# Steps without an out-of-memory error after which the budget doubles again; twice as many each time it was halved, or
# a machine with a little too little memory would throw a step away again and again.
RECOVERY_STEPS = 100
MAX_RECOVERY_STEPS = 100_000


class StepBudget:
    """The limits of the next step. Engine thread only; pure.

    `max_tokens` bounds a step's tokens, `itl_target` its seconds while answers are being written (0: no bound).
    `scale` shrinks that target for prompt chunks (the brown-out sets it). `num_over_target` counts steps that took
    longer than the target while answers were being written.
    """

    def __init__(self, max_tokens: int, itl_target: float) -> None:
        self.cost = StepCost()
        self.scale = 1.0
        self.num_over_target = 0
        self._max_tokens = self._tokens = max_tokens
        self._itl_target = itl_target
        self._num_good_steps = 0
        self._recovery_steps = RECOVERY_STEPS // 2

    @property
    def tokens(self) -> int:
        """The most tokens of one step at present."""
        return self._tokens

    def halve(self) -> bool:
        """A step ran out of memory: allow half as many tokens, until it has gone well for a while.

        False if there is nothing left to halve.
        """
        before, self._tokens = self._tokens, max(self._tokens // 2, min(MIN_TOKENS, self._max_tokens))
        self._num_good_steps = 0
        self._recovery_steps = min(2 * self._recovery_steps, MAX_RECOVERY_STEPS)
        return self._tokens < before

    def chunk(
        self, num_left: int, start: int, num_tokens: int, num_attended: int, has_decodes: bool, is_first: bool = True
    ) -> int:
        """Return how many of a prompt's `num_left` tokens, from position `start` on, the step may take in.

        The step already has `num_tokens` that attend to `num_attended`. `has_decodes` says whether anyone waits for
        the next token, `is_first` whether the step has no other chunk yet: then the result is at least `MIN_CHUNK`
        (or what is left of the prompt or the budget, if less); else it may be 0.
        """
        room = min(num_left, self._tokens - num_tokens)
        limit_s = self._itl_target * self.scale if has_decodes else ALONE_S
        if room <= 0 or limit_s <= 0.0:
            return max(room, 0)
        if not self.cost.is_known:
            return min(room, FIRST_CHUNK)
        most = self.cost.most_tokens(limit_s, num_tokens, num_attended, start, room)
        return max(most, min(room, MIN_CHUNK)) if is_first else most

    def observe(self, num_tokens: int, num_attended: int, seconds: float, had_decodes: bool) -> None:
        """Take in a step that went well: what it computed and the seconds it took (0: not measured)."""
        self.cost.observe(num_tokens, num_attended, seconds)
        if had_decodes and 0.0 < self._itl_target < seconds:
            self.num_over_target += 1
        if self._tokens < self._max_tokens:
            self._num_good_steps += 1
            if self._num_good_steps >= self._recovery_steps:
                self._tokens = min(2 * self._tokens, self._max_tokens)
                self._num_good_steps = 0
