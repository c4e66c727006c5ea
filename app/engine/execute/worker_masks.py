"""Masks that another process makes, for grammars of clients (see text/grammar/children/mask_worker).

After each step that process lets the sequences take their tokens, says at once which are complete, and makes their next
masks while this one goes on. A sequence whose mask is not there when the next step is planned, within `WAIT_S`, is
late: it sits that step out, and so do all with the same grammar, since only one of them can be worked on at a time. So
no step waits for a mask that takes long, and nothing is computed in vain.

    READY ──step, tokens taken──▶ not ready ──mask found──▶ READY         the process has ended: all begin again

When the process ends, the sequence that it has worked on for too long fails, and another process begins with the
tokens of all others. It may also have ended for want of memory, or by somebody's signal: where several sequences may be
the reason, they are tried one after the other, until it ends again at one of them alone.
"""

from __future__ import annotations

import select
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count

import numpy as np
from torch import Tensor

from app.contract.grammar import Constraint, Grammar
from app.engine.execute.local_masks import MAX_THREADS, LocalMasks
from app.engine.execute.masks import NOTHING_LEFT, Accepted, DrawMasks, Draws, MaskBuffers, Masks, Words, draws_of
from app.engine.schedule.step_plan import NO_ALLOWED_TOKEN, NO_TOKEN, RowStart, StepPlan
from app.runtime.clock import Clock, monotonic
from app.text.grammar.cache import GrammarCache
from app.text.grammar.children.mask_messages import (
    Draft,
    Messages,
    Ready,
    Reply,
    Setup,
    Start,
    Take,
    Took,
    Turn,
    encode,
)
from app.text.grammar.children.mask_workers import MaskWorkers, WorkerLink
from app.text.grammar.vocabulary import mask_words

WAIT_S = 0.02
"""How long the plan of a step waits for masks."""
IDLE_S = 0.02
"""How long a step without anything else to compute waits for masks at a time."""
REGIONS_PER_ROW = 4
"""Masks of sequences without a row stay too, while there is room."""
RETRY_S, NO_PROCESS_S = 1.0, 0.005
READ_BYTES = 64 * 2**10
TOO_COSTLY = "Its next tokens take more than 0.1 s of processor time to find"
TOO_LARGE = "Its next tokens take more memory or time to find than is allowed"
NO_PROCESS = "The process that applies grammars ends again and again"
MISSING_S = 15.0
"""How long sequences wait for a process to begin in, on a busy machine: less than the watchdog's time."""
MAX_ENDS = 20
"""Processes that end in a row, without a mask in between and without a reason, until all sequences fail."""


@dataclass(slots=True, eq=False)
class _Sequence:
    """A sequence with a grammar: what the other process knows of it, and has found."""

    number: int  # what the other process knows it by: a sequence that begins again is another one there
    id: int
    account: str
    grammar: Grammar  # as the request has it
    constraint: Constraint  # as the other process gets it
    tokens: list[int]
    region: int = -1
    is_begun: bool = False  # in the process that runs
    is_ready: bool = False
    is_slow: bool = False
    asked_at: float = 0.0
    forced: tuple[int, ...] = ()
    failure: str | None = None
    took: Took | None = None
    num_drafted: int = 0  # masks behind draft tokens that are there

    @property
    def is_settled(self) -> bool:
        """Whether its mask is there, or none will be."""
        return self.is_ready or self.failure is not None


def make_masks(
    grammars: GrammarCache,
    buffers: MaskBuffers,
    vocab_size: int,
    eos_token_ids: Collection[int],
    num_threads: int,
    num_rows: int,
) -> Masks:
    """Return the masks of a runner with `num_rows` rows: made by another process for grammars of clients."""
    masks = DrawMasks(buffers, vocab_size)
    local = LocalMasks(grammars, masks, eos_token_ids, num_threads)
    if not grammars.is_served:
        return local
    num_sequences = REGIONS_PER_ROW * num_rows
    setup = Setup(
        num_threads=max(1, min(num_threads, MAX_THREADS)),
        num_words=mask_words(vocab_size),
        num_regions=num_sequences + len(masks.words),
        eos_token_ids=tuple(eos_token_ids),
    )
    workers = grammars.workers = MaskWorkers(lambda: grammars.children, setup)
    return WorkerMasks(workers, local, masks, grammars, num_sequences)


class WorkerMasks:
    """Implements `Masks`, and LateSequences for the scheduler. Engine thread only.

    `local` has the sequences without a grammar, whose reasoning is limited.
    """

    def __init__(
        self,
        workers: MaskWorkers,
        local: LocalMasks,
        masks: DrawMasks,
        grammars: GrammarCache,
        num_sequences: int,
        clock: Clock = monotonic,
    ) -> None:
        self._workers = workers
        self._local = local
        self._masks = masks
        self._grammars = grammars
        self._clock = clock
        self._numbers = count(1)
        self._sequences: dict[int, _Sequence] = {}
        self._by_number: dict[int, _Sequence] = {}
        self._rows: dict[int, _Sequence] = {}
        self._late: dict[int, _Sequence] = {}  # those whose masks are not there; this and the rest by number
        self._draws: list[tuple[Draws, _Sequence]] = []
        self._link: WorkerLink | None = None
        self._replies = Messages(Reply)
        self._num_ends = 0  # of processes, in a row
        self._missed_at: float | None = None  # since when there has been no process
        self._regions = list(range(num_sequences))
        self._first_draft_region = num_sequences
        self._ending: dict[int, _Sequence] = {}  # ended ones that the process may still write the mask of
        self._takes: dict[int, Take] = {}  # without an answer yet
        self._drafts: dict[int, Draft] = {}
        self._suspects: deque[_Sequence] = deque()  # begin again one after the other

    # --- Rows -----------------------------------------------------------------------------------------------------

    @property
    def buffers(self) -> MaskBuffers:
        """See Masks.buffers."""
        return self._masks.buffers

    @property
    def rows(self) -> Collection[int]:
        """See ForcedTokens.rows."""
        return self._rows.keys() | self._local.rows.keys() if self._local.rows else self._rows.keys()

    def start(self, start: RowStart) -> None:
        """See Masks.start. A sequence that had a row before goes on where it was."""
        self._rows.pop(start.row, None)
        constraint = start.sampling.constraint
        if constraint is None or constraint.grammar is None:
            self._local.start(start)
            return
        self._local.release(start.row)
        sequence = self._sequences.get(start.sequence_id)
        if sequence is not None and sequence.tokens != list(start.output_token_ids):
            self.end(start.sequence_id)  # a step whose tokens it has taken has failed afterwards
            sequence = None
        if sequence is None:
            sequence = self._begin(start, constraint, constraint.grammar)
        elif sequence.region < 0 and sequence.failure is None:
            sequence.region = self._take_region()
            self._take(sequence, ())
        self._rows[start.row] = sequence

    def _begin(self, start: RowStart, constraint: Constraint, grammar: Grammar) -> _Sequence:
        region, number = self._take_region(), next(self._numbers)
        plain = replace(constraint, grammar=self._grammars.plain(grammar))
        known = (start.sequence_id, start.sampling.account, grammar, plain, [*start.output_token_ids])
        sequence = self._by_number[number] = self._sequences[start.sequence_id] = _Sequence(number, *known, region)
        self._send_start(sequence)
        return sequence

    def release(self, row: int) -> None:
        """See Masks.release. What is known of the sequence stays until its `end`."""
        self._local.release(row)
        self._rows.pop(row, None)

    def end(self, sequence_id: int) -> None:
        """See LateSequences.end."""
        sequence = self._sequences.pop(sequence_id, None)
        if sequence is None:
            return
        del self._by_number[sequence.number]
        self._forget(sequence)
        if sequence.is_begun and not sequence.is_settled:
            self._ending[sequence.number] = sequence
        else:
            self._free_region(sequence)
        self._send(Turn(ends=(sequence.number,)))
        if sequence in self._suspects:
            self._suspects.remove(sequence)
            self._try_suspect()

    def forced(self, row: int) -> Sequence[int]:
        """See ForcedTokens.forced."""
        sequence = self._rows.get(row)
        if sequence is None:
            return self._local.forced(row)
        return sequence.forced if sequence.is_ready and not sequence.is_slow else ()

    # --- Late sequences -------------------------------------------------------------------------------------------

    def late(self) -> Collection[Grammar]:
        """See LateSequences.late."""
        late = self._late
        if not late:
            return ()
        self._read(0.0)
        while late and (left := max(each.asked_at for each in late.values()) + WAIT_S - self._clock()) > 0:
            self._read(left)
        return {sequence.grammar for sequence in late.values()}

    def is_slow(self, sequence_id: int) -> bool:
        """See LateSequences.is_slow."""
        sequence = self._sequences.get(sequence_id)
        return sequence is not None and sequence.is_slow

    def wait(self) -> None:
        """See Masks.wait."""
        if number := len(self._late):
            self._receive(lambda: len(self._late) < number, self._clock() + IDLE_S)

    # --- Steps ----------------------------------------------------------------------------------------------------

    @property
    def has_constraints(self) -> bool:
        """See Masks.has_constraints."""
        return bool(self._draws) or self._local.has_constraints

    def fill(self, plan: StepPlan) -> bool:
        """See Masks.fill. Sequences that begin with this step have their masks at once: their grammars are compiled."""
        self._local.fill(plan)
        self._draws = []
        if not self._rows:
            return self._masks.has_any
        self._draws = [(draws, self._rows[draws.row]) for draws in draws_of(plan, self._rows)]
        self._wait_for_masks()
        self._ask_for_drafts()
        self._wait_for_masks()
        self._copy()
        return self._masks.has_any

    def accept(self, token_ids: list[int]) -> Accepted:
        """See Masks.accept."""
        accepted = self._local.accept(token_ids)
        for draws, sequence in self._draws:
            tokens = tuple(token_id for token_id in _drawn(draws, token_ids) if token_id >= 0)
            if tokens and sequence.failure is None:
                self._take(sequence, tokens)
        self._receive(lambda: not any(sequence.number in self._takes for _, sequence in self._draws))
        for draws, sequence in self._draws:
            self._conclude(draws, sequence, accepted)
        return accepted

    def allowed(self, draw: int) -> Tensor | None:
        """See Masks.allowed."""
        return self._masks.allowed(draw)

    def _wait_for_masks(self) -> None:
        """Wait for all masks of the step; a process that has ended meanwhile makes them again."""
        waiting = [sequence for _, sequence in self._draws]
        self._receive(lambda: not self._drafts and all(sequence.is_settled for sequence in waiting))

    def _ask_for_drafts(self) -> None:
        """Ask for the masks behind draft tokens."""
        for draws, sequence in self._draws:
            if draws.guess and sequence.failure is None:
                sequence.num_drafted = 0
                region = self._first_draft_region + draws.first + 1
                draft = self._drafts[sequence.number] = Draft(sequence.number, region, tuple(draws.guess))
                self._send(Turn(drafts=(draft,)))

    def _copy(self) -> None:
        """Copy the masks of the draws from the shared memory."""
        targets: list[int] = []
        regions: list[int] = []
        for draws, sequence in self._draws:
            if sequence.failure is not None:
                self._masks.write(draws.first, None)
                continue
            count = sequence.num_drafted if draws.guess else 0
            targets += range(draws.first, draws.first + 1 + count)
            first = self._first_draft_region + draws.first + 1
            regions += [sequence.region, *range(first, first + count)]
        if targets:
            self._masks.words[targets] = self._shared()[regions]
            for draw in targets:
                self._masks.mark(draw)

    def _conclude(self, draws: Draws, sequence: _Sequence, accepted: Accepted) -> None:
        """Note what has become of the tokens that a sequence was to take."""
        took, sequence.took = sequence.took, None
        drawn, last, failure = _drawn(draws, accepted.token_ids), draws.first, sequence.failure
        if took is not None:
            last, failure = last + took.num_taken - 1, took.failure  # that of the next mask is for the next step
            if took.is_complete:
                accepted.ends[last] = True
                return
        if failure is None and drawn[-1] == NO_ALLOWED_TOKEN:
            last = draws.first + len(drawn) - 1
            sequence.failure = failure = NOTHING_LEFT
        if failure is None or drawn[0] == NO_TOKEN:  # no logit was a number, whatever the grammar
            return
        accepted.token_ids[last] = NO_ALLOWED_TOKEN
        accepted.failures[sequence.id] = failure

    # --- The other process ----------------------------------------------------------------------------------------

    def _take(self, sequence: _Sequence, tokens: tuple[int, ...]) -> None:
        sequence.is_ready, sequence.forced, sequence.took = False, (), None
        take = self._takes[sequence.number] = Take(sequence.number, sequence.region, tokens)
        self._send(Turn(takes=(take,)))

    def _send(self, turn: Turn) -> None:
        """Send a turn; what a process does not get that has ended is sent to the next one again."""
        if self._link is not None:
            with suppress(OSError):
                self._link.steps.sendall(encode(turn))

    def _receive(self, is_done: Callable[[], bool], until: float | None = None) -> None:
        """Read what the process says until `is_done`, or up to the time `until`."""
        while not is_done():
            left = None if until is None else until - self._clock()
            if left is not None and left <= 0:
                self._read(0.0)
                return
            self._read(RETRY_S if left is None else min(left, RETRY_S))

    def _read(self, timeout: float) -> None:
        """Read what the process says within a time; start a process if there is none."""
        link = self._link or self._connect()
        if link is None:
            self._miss_process()
            time.sleep(min(timeout, NO_PROCESS_S))
            return
        try:
            if not select.select([link.steps], [], [], timeout)[0]:
                return
            data = link.steps.recv(READ_BYTES)
        except (OSError, ValueError):  # the latter of a socket that was closed, as the server's end does
            data = b""
        if not data:
            self._begin_again(link)
        for reply in self._replies.feed(data):
            self._apply(reply)

    def _apply(self, reply: Reply) -> None:
        for took in reply.took:
            take = self._takes.pop(took.sequence_id, None)
            if take is None:
                continue
            sequence = self._by_number[took.sequence_id]
            sequence.tokens += take.token_ids[: took.num_taken]
            sequence.took, sequence.failure = took, sequence.failure or took.failure
            sequence.is_ready = took.is_complete
            if not took.is_complete and sequence.failure is None:
                self._note_late(sequence)
        for drafted in reply.drafted:
            if self._drafts.pop(drafted.sequence_id, None) is not None:
                self._by_number[drafted.sequence_id].num_drafted = drafted.count
        for ready in reply.ready:
            self._apply_ready(ready)
        self._clear_suspect()

    def _apply_ready(self, ready: Ready) -> None:
        if (ended := self._ending.pop(ready.sequence_id, None)) is not None:
            self._free_region(ended)
            return
        sequence = self._by_number.get(ready.sequence_id)
        if sequence is None or sequence.number in self._takes or ready.num_tokens != len(sequence.tokens):
            return
        self._num_ends = 0
        self._late.pop(sequence.number, None)
        sequence.is_ready, sequence.is_slow = True, ready.is_slow
        sequence.forced, sequence.failure = ready.forced, sequence.failure or ready.failure

    def _clear_suspect(self) -> None:
        """Let the next suspect begin when the first one has done all that it was doing."""
        if not self._suspects:
            return
        first = self._suspects[0]
        if first.is_settled and first.number not in self._takes and first.number not in self._drafts:
            self._suspects.popleft()
            self._try_suspect()

    def _try_suspect(self) -> None:
        if self._suspects and not self._suspects[0].is_begun:
            self._send_start(self._suspects[0])

    def _connect(self) -> WorkerLink | None:
        """Begin all sequences in the process that runs, or in a new one; return None while there is none."""
        link = self._link = self._workers.current()
        if link is None:
            return None
        self._missed_at = None
        self._replies = Messages(Reply)
        for sequence in self._sequences.values():
            if sequence.failure is None and sequence not in self._suspects:
                self._send_start(sequence)
        self._try_suspect()
        return self._link

    def _send_start(self, sequence: _Sequence) -> None:
        """Begin a sequence, with what it was doing when the last process ended."""
        if self._link is None:
            return  # it begins with the next process
        sequence.is_begun = True
        start = Start(sequence.number, sequence.region, sequence.account, sequence.constraint, tuple(sequence.tokens))
        takes, drafts = self._takes.get(sequence.number), self._drafts.get(sequence.number)
        self._send(
            Turn(
                starts=(start,),
                takes=() if takes is None else (takes,),
                drafts=() if drafts is None else (drafts,),
            )
        )

    def _begin_again(self, link: WorkerLink) -> None:
        """Note why a process has ended: one sequence may fail, all others begin again in the next process."""
        self._workers.renew(link)
        self._link = None
        self._num_ends += 1
        culprit, reason = self._by_number.get(link.culprit) or self._ending.get(link.culprit), TOO_COSTLY
        if culprit is None and self._suspects and self._suspects[0].number in link.suspects:
            culprit, reason = self._suspects[0], TOO_LARGE  # the others were not there
        self._suspects.clear()
        if culprit is not None:
            culprit.failure = reason
            self._num_ends = 0
            self._grammars.condemn(culprit.constraint.grammar, reason, culprit.account)
            self._forget(culprit)
        else:
            self._suspects.extend(self._by_number[each] for each in link.suspects if each in self._by_number)
        for ended in self._ending.values():
            self._free_region(ended)
        self._ending.clear()
        self._takes = {number: take for number, take in self._takes.items() if take.token_ids}  # the others: see start
        for sequence in self._sequences.values():
            sequence.is_begun = False
            if sequence.is_ready and sequence.failure is None:
                sequence.is_ready = False
                self._note_late(sequence)
        if self._num_ends >= MAX_ENDS:
            self._fail_all()
        elif self._sequences:
            self._connect()

    def _miss_process(self) -> None:
        """Note that there is no process, and that none can be forked; sequences fail if that does not change."""
        if self._workers.is_closed:
            self._fail_all()
        elif self._missed_at is None:
            self._missed_at = self._clock()
        elif self._clock() - self._missed_at > MISSING_S:
            self._fail_all()

    def _fail_all(self) -> None:
        for sequence in self._sequences.values():
            sequence.failure = sequence.failure or NO_PROCESS
        for found in (self._late, self._takes, self._drafts, self._suspects):
            found.clear()

    def _forget(self, sequence: _Sequence) -> None:
        for found in (self._late, self._takes, self._drafts):
            found.pop(sequence.number, None)

    def _note_late(self, sequence: _Sequence) -> None:
        self._late[sequence.number] = sequence
        sequence.asked_at = self._clock()

    # --- Memory ---------------------------------------------------------------------------------------------------

    def _shared(self) -> Words:
        """Return the masks in the shared memory."""
        memory = self._workers.memory
        assert memory is not None
        return np.frombuffer(memory.words, np.uint32).reshape(-1, memory.num_words)

    def _take_region(self) -> int:
        """Return a region for a mask; where none is free, that of a sequence without a row whose mask is there."""
        rows = list(self._rows.values())
        others = [each for each in self._sequences.values() if each.region >= 0 and each not in rows]
        self._receive(lambda: bool(self._regions) or any(each.is_settled for each in others))
        if not self._regions:
            self._free_region(next(each for each in others if each.is_settled))
        return self._regions.pop()

    def _free_region(self, sequence: _Sequence) -> None:
        if sequence.region >= 0:
            self._regions.append(sequence.region)
            sequence.region = -1


def _drawn(draws: Draws, token_ids: Sequence[int]) -> list[int]:
    """Return what was drawn for a sequence while it equals the draft, and the next one, which may be no token."""
    found: list[int] = []
    for index, guess in enumerate([*draws.guess, NO_TOKEN], draws.first):
        found.append(token_ids[index])
        if token_ids[index] != guess:
            break
    return found
