"""The planner: which sequences get how many tokens of a step.

There is no prefill and no decode, only sequences with tokens to do. The rules, in the order in which they apply:

1. Resumed groups run again while there are seats (`max_num_seqs`; a PAUSED one takes none and has no rows). Under
   `fair` whose account has least comes first, who has more makes way for it (see `shares`), and the account that
   makes steps long sits some out (see `rests`).
2. Running sequences with one token to do get it, in the policy's order. Who needs a block and finds none takes it
   from a victim (see `room`); who is about to write to a shared block copies it first.
3. Prefill chunks fill what is left of the step's budget: every second step those of the policy's first go in first,
   in the others the shortest, and then whoever has more left than them waits (see `_plan_prompts`).
4. Groups without blocks start, in the policy's order, while seats, budget and blocks last; nobody overtakes the
   first. One starts when the blocks of all its tokens fit plus a watermark of 1 % (none while nothing else runs);
   what is found in the prefix cache it need not compute. It gets its blocks at once, so a prefill never stops
   half-way for want of blocks. PAUSED ones make room when that is enough.
5. A step without prompts has room for guesses (see `speculation`).
"""

from __future__ import annotations

from itertools import chain
from operator import attrgetter
from typing import NamedTuple

from app.engine.schedule.block_tables import BlockTables
from app.engine.schedule.deadlines import Deadlines
from app.engine.schedule.draft import StepDraft
from app.engine.schedule.forks import Forks
from app.engine.schedule.group import SequenceGroup
from app.engine.schedule.lines import SequenceLines
from app.engine.schedule.rests import Rests
from app.engine.schedule.room import Room
from app.engine.schedule.sequence import PAUSED, RUNNING, SWAPPED, Sequence
from app.engine.schedule.speculation import Speculation
from app.engine.schedule.step_budget import MIN_CHUNK, StepBudget

# A prompt that has waited for so many steps gets a small chunk, a step for each such prompt.
PATIENCE = 16

_num_left, _last_step = attrgetter("num_left"), attrgetter("last_step")


class _Refusal(NamedTuple):
    """Who found no room, what room there was, and how many blocks of it were found in the cache."""

    group: SequenceGroup | None
    num_soon_free: int
    most_given: int
    num_hits: int
    needed: int


class Planner:
    """Fills steps. Engine thread only.

    It counts, in tokens: prompts looked up in the prefix cache, those found there, and those that groups which had
    lost their blocks have to compute again.
    """

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
        self.num_prefix_queries = 0
        self.num_prefix_hits = 0
        self.num_lost_tokens = 0
        self._lines = lines
        self._tables = tables
        self._room = room
        self._budget = budget
        self._forks = forks
        self._deadlines = deadlines
        self._speculation = speculation
        self._rests = rests
        self._watermark = -(-tables.pool.num_blocks // 100)
        self._refusal = _Refusal(None, 0, 0, 0, 0)
        self._next: SequenceGroup | None = None  # to start, since a step
        self._next_since = 0
        self._policys_turn = 0  # the last step in which the policy's first went in first

    def fill(self, draft: StepDraft) -> None:
        """Put into an empty `draft` what the step is to compute."""
        has_seats_left = self._resume_paused()
        if self._rests is not None and self._room.allowed is None:
            draft.resting = self._rests.choose()
        prefilling = self._plan_running(draft)
        if draft.resting is not None and not (draft.num_tokens or prefilling):
            draft.resting = None  # nobody has anything from it
            prefilling = self._plan_running(draft)
        if not (draft.has_decodes and self._budget.is_for_decodes(draft.step)):
            self._plan_prompts(prefilling, draft, has_seats_left)
        if self._speculation is not None and self._room.allowed is None and not draft.has_chunks:
            self._speculation.guess(draft)

    def _resume_paused(self) -> bool:
        """Let resumed groups run; False if one of them waits for seats, which nobody else may take then."""
        shares, num_kept = self._lines.shares, self._make_way()
        resuming = self._lines.resuming
        for group in tuple(resuming) if shares is None else sorted(resuming, key=shares.rank):
            if not self._room.may_run(group) or self._is_in_flight(group):
                continue  # its new rows must hear of the tokens in flight
            if not self._has_seats_for(group, num_kept):
                return num_kept > 0
            self._lines.move(group, RUNNING)
        return True

    def _make_way(self) -> int:
        """Under `fair`, let those whose accounts have more give seats and blocks to who is next.

        Returns:
            The seats that are kept for it, if it is one that is to start.
        """
        lines, room, shares = self._lines, self._room, self._lines.shares
        group = None if shares is None else shares.next_group
        if group is None or shares is None or room.allowed is not None or not lines.running:
            return 0
        if self._is_in_flight(group):
            return 0
        if group.status is not PAUSED and self._was_refused(group):
            room.make_way(group, self._refusal.needed)
            if self._was_refused(group):
                return 0
        num_missing = lines.num_seats + group.num_seats - self._num_seats
        if num_missing > 0:
            givers = shares.givers(group, num_missing, lines.running)
            for giver in givers:
                lines.move(giver, PAUSED)
            if not givers:
                return 0
        return 0 if group.status is PAUSED else group.num_seats

    def _plan_running(self, draft: StepDraft) -> list[Sequence]:
        """Add what decodes; return the sequences with prompts to do, in the policy's order."""
        prefilling: list[Sequence] = []
        while self._lines.num_seats > draft.num_left and len(self._lines.running) > 1:
            self._room.preempt(self._room.last_running)  # the budget has shrunk
        size, run_ahead, is_open = self._tables.block_size, self._tables.run_ahead, self._room.allowed is None
        plain: list[Sequence] = []  # nothing but their next tokens, as in nearly all steps of all sequences
        for group in tuple(self._lines.running):
            if group.status is not RUNNING or not (is_open or self._room.may_run(group)):
                continue  # it became a victim of one before it
            if group.account == draft.resting:
                continue
            sequence = group.open[0]
            start = sequence.num_scheduled
            if (
                len(group.open) == 1
                and start == sequence.num_tokens - 1
                and sequence.num_prompt <= start < sequence.max_slots
                and start + run_ahead < len(sequence.block_table) * size
                and sequence.row is not None
                and group.search is None
            ):
                plain.append(sequence)
                continue
            if plain:  # in the policy's order, so that none of them can be a victim any more
                draft.add_next(plain)
                plain = []
            self._plan_group(group, draft, prefilling)
        draft.add_next(plain)
        return prefilling

    def _plan_group(self, group: SequenceGroup, draft: StepDraft, prefilling: list[Sequence]) -> None:
        """Add the tokens that complete an answer's next one; sequences with more to do go to `prefilling`."""
        leader = group.open[0]
        if group.is_folded and leader.output_token_ids and leader.num_scheduled >= group.num_prompt:
            self._forks.spread(group)
        decoding = []
        for sequence in group.active:
            num_left = sequence.num_left
            if num_left > 1:
                prefilling.append(sequence)
            elif num_left == 1 and not self._waits_for_search(sequence):
                decoding.append(sequence)
        decoding = decoding[: draft.num_left]  # all of them, unless the budget has shrunk
        if decoding and self._grow(group, decoding, draft):
            for sequence in decoding:
                self._add(sequence, 1, draft)

    def _grow(self, group: SequenceGroup, sequences: list[Sequence], draft: StepDraft) -> bool:
        """Give `sequences` blocks of their own for their next tokens, from victims if need be; False if not now."""
        tables = self._tables
        missing = [max(0, tables.num_missing(sequence, sequence.num_scheduled + 1)) for sequence in sequences]
        needed = sum(missing)
        is_shared = len(group.open) > 1
        if is_shared:
            needed += tables.num_copies(sequences)
        if not needed:
            return True
        if not self._room.to_grow(group, needed):
            return False
        for sequence, number in zip(sequences, missing, strict=True):
            copied = tables.copy_on_write(sequence) if is_shared else None
            if copied is not None:
                draft.replace_block(sequence, *copied)
            if number:
                draft.append_blocks(sequence, tables.append(sequence, number))
        return True

    def _plan_prompts(self, prefilling: list[Sequence], draft: StepDraft, may_start: bool) -> None:
        """Share what is left of the step among `prefilling`, in the policy's order, and those who may start.

        The policy's first has its turn in every second step, so nobody's prompt takes more than twice the time that
        the policy would give it. The other steps are for the shortest, who need not wait for a long one to end. Who
        neither is gets a small chunk now and then; so every prompt gets on in a number of steps that is known.
        """
        if prefilling:
            first = prefilling[0]
            self._plan_overdue(prefilling, draft, may_start)
            if max(first.last_step, self._policys_turn) < draft.step - 1:
                self._policys_turn = draft.step
                self._add_chunk(first, draft, at_least=1)
            shortest_first = sorted(prefilling, key=_num_left)
            for sequence in shortest_first:
                if may_start:
                    self._start_waiting(draft, sequence.num_left)
                if sequence is first and draft.has_chunks and self._budget.has_target:
                    return  # whoever has got on is the sooner done
                self._add_chunk(sequence, draft, at_least=int(sequence is shortest_first[0]))
        if may_start:
            self._start_waiting(draft)

    def _plan_overdue(self, prefilling: list[Sequence], draft: StepDraft, may_start: bool) -> None:
        """Give a small chunk to who is next to start, and to the one who has waited longest, if it was too long."""
        group = self._next_to_start()
        if group is not self._next:
            self._next, self._next_since = group, draft.step
        if may_start and group is not None and draft.step - self._next_since > PATIENCE:
            self._start_next(group, draft, most=_small(draft))
        longest = min(prefilling, key=_last_step)
        if draft.step - longest.last_step > PATIENCE:
            self._add_chunk(longest, draft, at_least=1, most=_small(draft))

    def _start_waiting(self, draft: StepDraft, shorter_than: int | None = None) -> None:
        """Let groups start while there is room, up to the first that has no fewer than `shorter_than` tokens to do."""
        while draft.num_left:
            group = self._next_to_start()
            if group is None or (shorter_than is not None and group.open[0].num_left >= shorter_than):
                return
            if not self._start_next(group, draft):
                return

    def _start_next(self, group: SequenceGroup, draft: StepDraft, most: int | None = None) -> bool:
        """Let `group` start, with `most` tokens of each prompt; False if it cannot now."""
        if group.account == draft.resting or not self._has_seats_for(group) or self._is_in_flight(group):
            return False
        if not (self._bring_back(group, draft) if group.status is SWAPPED else self._start(group, draft)):
            return False
        draft.started.append(group)
        prefilling: list[Sequence] = []
        self._plan_group(group, draft, prefilling)
        for sequence in prefilling:
            self._add_chunk(sequence, draft, most=most)
        return True

    def _start(self, group: SequenceGroup, draft: StepDraft) -> bool:
        """Give a group without blocks those it needs; False if they do not fit now, or could not be used."""
        tables = self._tables
        if not self._has_time_left(draft, 0) or self._was_refused(group):
            return False  # looking a long prompt up in every step would cost everybody
        hits = tables.find_hits(group.open[0])
        tables.hold(hits)
        has_time = not hits or self._has_time_left(draft, len(hits) * tables.block_size)
        needed = tables.num_to_start(group, hits) + self._watermark_now
        if not (has_time and self._room.to_start(needed)):
            is_too_much = has_time and needed > tables.pool.num_soon_free  # else it only waits for a fence
            tables.let_go(hits)
            if is_too_much:
                self._note_refusal(group, len(hits), needed)
            return False
        self._lines.move(group, RUNNING)
        tables.start(group, hits)
        self._note_start(group, len(hits) * tables.block_size)
        return True

    def _was_refused(self, group: SequenceGroup) -> bool:
        """Whether `group` found no room last time, and neither room nor what is found has grown since."""
        last = self._refusal
        if group is not last.group or not self._lines.running or self._room.allowed is not None:
            return False
        soon_free, given = self._tables.pool.num_soon_free, self._room.most_given
        if soon_free > last.num_soon_free or given > last.most_given:
            return False
        self._note_refusal(group, last.num_hits, last.needed)  # what has shrunk may grow again
        return not self._tables.is_hit(group.open[0], last.num_hits)

    def _note_refusal(self, group: SequenceGroup, num_hits: int, needed: int) -> None:
        self._refusal = _Refusal(group, self._tables.pool.num_soon_free, self._room.most_given, num_hits, needed)

    def _bring_back(self, group: SequenceGroup, draft: StepDraft) -> bool:
        """Bring the blocks of a SWAPPED group back; False if they do not fit now, or could not be used.

        All its sequences must be able to go on in this step: the copies they take before they write are counted.
        """
        if draft.num_left < min(len(group.open), self._budget.tokens) or self._was_refused(group):
            return False
        if not self._has_time_left(draft, group.open[0].num_scheduled):
            return False
        needed = self._tables.num_to_swap_in(group) + self._watermark_now
        if not self._room.to_start(needed):
            if needed > self._tables.pool.num_soon_free:
                self._note_refusal(group, group.open[0].num_tokens, needed)
            return False
        self._lines.move(group, RUNNING)
        self._tables.swap_in(group)
        return True

    @property
    def _watermark_now(self) -> int:
        return self._watermark if self._lines.running and self._room.allowed is None else 0

    def _add_chunk(self, sequence: Sequence, draft: StepDraft, *, at_least: int = 0, most: int | None = None) -> None:
        """Add as many of a sequence's tokens as the step's budget allows; a folded group's only to the prompt's end.

        The first chunk of a step has `MIN_CHUNK` tokens at least. Nothing is added for who is in the step already.
        """
        group, start, num_left = sequence.group, sequence.num_scheduled, sequence.num_left
        if group.status is not RUNNING or sequence.last_step == draft.step:
            return  # a victim, of one of its own group too
        if group.is_folded and start < group.num_prompt:
            num_left = min(num_left, group.num_prompt - start)
        if most is not None:
            num_left = min(num_left, most)
        number = self._chunk(num_left, start, draft, at_least if draft.has_chunks else MIN_CHUNK)
        if number > 0:
            self._add(sequence, number, draft)

    def _has_time_left(self, draft: StepDraft, start: int) -> bool:
        """Whether the step may take in another chunk, from position `start` on: nobody takes blocks for nothing."""
        return not draft.has_chunks or self._chunk(1, start, draft, 0) > 0

    def _chunk(self, num_left: int, start: int, draft: StepDraft, at_least: int) -> int:
        """How many of a prompt's next tokens the step may take in."""
        budget = self._budget
        if draft.limit_s is None:
            draft.limit_s = budget.limit_s(draft.num_tokens if draft.has_decodes else 0, draft.num_attended)
        number = budget.chunk(num_left, start, draft.num_tokens, draft.num_attended, draft.limit_s, at_least)
        return min(number, draft.num_left)

    def _add(self, sequence: Sequence, number: int, draft: StepDraft) -> None:
        draft.add(sequence, number)
        group = sequence.group
        if group.is_folded and sequence.num_scheduled == group.num_prompt and not sequence.output_token_ids:
            self._forks.draw_together(group, draft)

    def _note_start(self, group: SequenceGroup, num_found: int) -> None:
        if group.first_scheduled_time is None:
            self._deadlines.started(group.request.id)
            group.num_cached_tokens = num_found
            self.num_prefix_queries += group.num_prompt if self._tables.is_caching else 0
            self.num_prefix_hits += num_found
        else:
            num_lost = max(0, group.dropped.start - num_found)
            group.num_lost_tokens += num_lost
            self.num_lost_tokens += num_lost

    def _waits_for_search(self, sequence: Sequence) -> bool:
        """Whether the sequence is a beam whose next token is not known: the search chooses when all are sampled."""
        group = sequence.group
        return group.search is not None and (sequence.id in group.samples or self._is_in_flight(group))

    def _next_to_start(self) -> SequenceGroup | None:
        allowed = self._room.allowed
        if allowed is None:
            shares = self._lines.shares
            group = self._lines.next_to_start if shares is None else shares.next_group
            return None if group is None or group.status is PAUSED else group
        lines = chain(self._lines.returning, self._lines.waiting)
        return next((group for group in lines if group.request.id in allowed), None)

    @property
    def _num_seats(self) -> int:
        return min(self._lines.rows.num_rows, self._budget.tokens)

    def _has_seats_for(self, group: SequenceGroup, num_kept: int = 0) -> bool:
        """Whether `group` can run beside `num_kept` free seats; alone it always can. Who may not run gives its up."""
        lines, num_seats = self._lines, self._num_seats - num_kept
        while lines.running and lines.num_seats + group.num_seats > num_seats:
            if self._room.may_run(self._room.last_running):
                return False
            self._room.preempt(self._room.last_running)
        return True

    def _is_in_flight(self, group: SequenceGroup) -> bool:
        return group.last_step > self._tables.pool.last_done_step


def _small(draft: StepDraft) -> int:
    """The tokens of a small chunk, which leaves some for whose turn it is."""
    return max(1, min(MIN_CHUNK, draft.num_left // 4))
