"""The planner: which sequences get how many tokens of a step.

There is no prefill and no decode, only sequences with tokens to do. The rules, in the order in which they apply:

1. Resumed groups run again while there are seats (see `admission`). Under `fair` the account that makes steps long sits
   some out (see `rests`).
2. Running sequences with one token to do get it, in the policy's order (see `decodes`).
3. Prompts fill what is left of the step's budget, in turns, and groups start among them (see `prompt_turns`).
4. A step without prompts has room for guesses (see `speculation`).
"""

from __future__ import annotations

from app.engine.schedule.chunk_sizes import ChunkSizes
from app.engine.schedule.deadlines import Deadlines
from app.engine.schedule.decodes import Decodes
from app.engine.schedule.group_starts import Admission
from app.engine.schedule.kv.block_tables import BlockTables
from app.engine.schedule.preemption import Room
from app.engine.schedule.prompt_turns import PromptTurns
from app.engine.schedule.queues import SequenceLines
from app.engine.schedule.rests import Rests
from app.engine.schedule.search.forks import Forks
from app.engine.schedule.speculation.speculation import Speculation
from app.engine.schedule.step_budget import StepBudget
from app.engine.schedule.step_builder import StepDraft


class Planner:
    """Fills steps. Engine thread only."""

    def __init__(
        self,
        lines: SequenceLines,
        tables: BlockTables,
        room: Room,
        budget: StepBudget,
        forks: Forks,
        deadlines: Deadlines,
        speculation: Speculation | None = None,
        rests: Rests | None = None,
    ) -> None:
        sizes = ChunkSizes(budget, rests)
        self.admission = Admission(lines, tables, room, budget, sizes, deadlines)
        self._decodes = Decodes(lines, tables, room, forks)
        self._prompts = PromptTurns(self.admission, self._decodes, sizes, budget)
        self._room = room
        self._speculation = speculation
        self._rests = rests

    def fill(self, draft: StepDraft) -> None:
        """Put into an empty `draft` what the step is to compute."""
        may_start = self.admission.resume()
        self.admission.keep_to_seats()
        if self._rests is not None and self._room.allowed is None:
            draft.resting = self._rests.choose()
        prefilling = self._decodes.plan_all(draft)
        if draft.resting is not None and not draft.num_tokens:
            draft.resting = None  # nobody else writes an answer, and prompts have their share of every step
            prefilling = self._decodes.plan_all(draft)
        self._prompts.plan(prefilling, draft, may_start)
        if self._speculation is not None and self._room.allowed is None and not draft.has_chunks:
            self._speculation.guess(draft)
