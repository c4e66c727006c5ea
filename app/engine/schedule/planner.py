"""The planner: which sequences get how many tokens of a step.

There is no prefill phase and no decode phase, only sequences with tokens to compute. The rules, in order:

1. Resumed groups run again while there are seats (see `group_starts`). Under `fair` the account that makes steps long
   sits some steps out (see `rests`).
2. Running sequences with one token to compute get it, in the policy's order (see `decodes`).
3. Prompts fill the rest of the step's budget, in turns, and waiting groups start among them (see `prompt_turns`).
4. A step without prompts may compute draft tokens (see `speculation`).
"""

from __future__ import annotations

from app.engine.schedule.chunk_sizes import ChunkSizes
from app.engine.schedule.deadlines import Deadlines
from app.engine.schedule.decodes import Decodes
from app.engine.schedule.group_starts import GroupStarts
from app.engine.schedule.kv.block_tables import BlockTables
from app.engine.schedule.preemption import Preemption
from app.engine.schedule.prompt_turns import PromptTurns
from app.engine.schedule.queues import SequenceQueues
from app.engine.schedule.rests import Rests
from app.engine.schedule.search.forks import Forks
from app.engine.schedule.speculation.speculation import Speculation
from app.engine.schedule.step_budget import StepBudget
from app.engine.schedule.step_builder import StepPlanBuilder


class Planner:
    """Fills steps. Engine thread only."""

    def __init__(
        self,
        queues: SequenceQueues,
        tables: BlockTables,
        preemption: Preemption,
        budget: StepBudget,
        forks: Forks,
        deadlines: Deadlines,
        speculation: Speculation | None = None,
        rests: Rests | None = None,
    ) -> None:
        sizes = ChunkSizes(budget, rests)
        self.starts = GroupStarts(queues, tables, preemption, budget, sizes, deadlines)
        self._decodes = Decodes(queues, tables, preemption, forks)
        self._prompts = PromptTurns(self.starts, self._decodes, sizes, budget)
        self._preemption = preemption
        self._speculation = speculation
        self._rests = rests

    def fill(self, builder: StepPlanBuilder) -> None:
        """Put into an empty `builder` what the step is to compute."""
        may_start = self.starts.resume()
        self.starts.keep_to_seats()
        if self._rests is not None and self._preemption.allowed is None:
            builder.resting = self._rests.choose()
        prefilling = self._decodes.plan_all(builder)
        if builder.resting is not None and not builder.num_tokens:
            builder.resting = None  # no other account decodes, and prompts have their share of every step
            prefilling = self._decodes.plan_all(builder)
        self._prompts.plan(prefilling, builder, may_start)
        if self._speculation is not None and self._preemption.allowed is None and not builder.has_chunks:
            self._speculation.propose(builder)
