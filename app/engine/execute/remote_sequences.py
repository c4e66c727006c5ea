"""The sequences with grammars as the process that finds their masks knows them: what it is told, and what it says.

A sequence begins there when its request is queued, so that its first mask is there when it gets a row: its grammar may
have to be compiled. When that process ends, the sequence that it has worked on for too long fails, and another process
begins with the tokens of all others; the masks that were there stay. It may also have ended for want of memory, or by
somebody's signal: where several sequences may be the reason, they are tried one after the other, until it ends again at
one of them.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import count

import numpy as np

from app.engine.execute.mask_regions import MaskRegions
from app.engine.execute.masks import Words
from app.engine.execute.remote_sequence import RemoteSequence
from app.engine.schedule.row_sampling import RowSampling
from app.runtime.clock import Clock, monotonic
from app.text.grammar.cache import GrammarCache
from app.text.grammar.children.mask_messages import Draft, Ready, Reply, Start, Take, Took, Turn
from app.text.grammar.children.mask_workers import MaskWorkers, WorkerLink
from app.text.grammar.children.trial import GrammarLimits

RETRY_S, NO_PROCESS_S = 1.0, 0.005
TOO_COSTLY = f"Its next tokens take more than {GrammarLimits().mask_s:g} s of processor time to find"
TOO_LARGE = "Its next tokens take more memory or time to find than is allowed"
TOO_MANY = "Other grammars of the same client have cost too much"
NO_PROCESS = "The process that applies grammars ends again and again"
MISSING_S = 15.0
"""How long sequences wait for a process to begin in, on a busy machine: less than the watchdog's time."""
MAX_ENDS = 20
"""Processes that end in a row, without a mask in between and without a reason, until all sequences fail."""


class RemoteSequences:
    """All sequences with grammars, and the process that finds their masks. Engine thread only.

    `num_regions` masks of sequences are kept in the shared memory.

    Attributes:
        late: those whose masks are not there, by number.
        ended: those whose answers have ended with their last token, until somebody has noted it; by number.
    """

    def __init__(
        self, workers: MaskWorkers, grammars: GrammarCache, num_regions: int, clock: Clock = monotonic
    ) -> None:
        self.late: dict[int, RemoteSequence] = {}
        self.ended: dict[int, RemoteSequence] = {}
        self._workers = workers
        self._grammars = grammars
        self._clock = clock
        self._numbers = count(1)
        self._sequences: dict[int, RemoteSequence] = {}  # the first ones give their regions away first
        self._by_number: dict[int, RemoteSequence] = {}
        self._link: WorkerLink | None = None
        self._num_ends = 0  # of processes, in a row
        self._missed_at: float | None = None  # since when there has been no process
        self._regions = MaskRegions(num_regions)
        self._ending: dict[int, RemoteSequence] = {}  # ended ones that the process may still write the mask of
        self._takes: dict[int, Take] = {}  # without an answer yet
        self._drafts: set[int] = set()  # numbers of sequences, ended ones too, whose draft masks are being made
        self._drafting: dict[int, RemoteSequence] = {}  # those of the present step, while it waits
        self._suspects: deque[RemoteSequence] = deque()  # begin again one after the other, before all others

    def get(self, sequence_id: int) -> RemoteSequence | None:
        """Return a sequence; None if it has not begun."""
        return self._sequences.get(sequence_id)

    def prepare(self, sequence_id: int, sampling: RowSampling, token_ids: Sequence[int], *, is_next: bool) -> None:
        """Have the mask of a sequence without a row made (see `LateSequences.prepare`)."""
        sequence = self._find(sequence_id, token_ids)
        if sequence is not None and is_next:
            self._sequences[sequence_id] = self._sequences.pop(sequence_id)
        if sequence is None or sequence.needs_region:
            region = self._regions.take(self._with_spare_regions()) if is_next else self._regions.spare()
            if region is not None:
                self._have_mask(region, sequence or self._new(sequence_id, sampling, token_ids))

    def start(self, sequence_id: int, sampling: RowSampling, token_ids: Sequence[int]) -> RemoteSequence:
        """Return the sequence that takes a row: as it was, or begun with the tokens that it has.

        Blocks while there is no region for it because all others' masks are being made.
        """
        sequence = self._find(sequence_id, token_ids)
        if sequence is None or sequence.needs_region:
            while (region := self._regions.take(self._with_spare_regions())) is None:
                self.read(RETRY_S)
            sequence = sequence or self._new(sequence_id, sampling, token_ids)
            self._have_mask(region, sequence)
        return sequence

    def _find(self, sequence_id: int, token_ids: Sequence[int]) -> RemoteSequence | None:
        """Return a sequence, unless it has other tokens than it should: then a step has failed that it knows of."""
        sequence = self._sequences.get(sequence_id)
        if sequence is None:
            return None
        take = self._takes.get(sequence.number)
        if [*sequence.tokens, *(() if take is None else take.token_ids)] != [*token_ids]:
            self.end(sequence_id)
            return None
        return sequence

    def _with_spare_regions(self) -> Iterator[RemoteSequence]:
        """Yield sequences that can begin again later with the mask that they have now."""
        return (each for each in self._sequences.values() if not each.has_row and each.number not in self.late)

    def _new(self, sequence_id: int, sampling: RowSampling, token_ids: Sequence[int]) -> RemoteSequence:
        """Return a sequence with the tokens that it has, which the process has not been told of."""
        constraint, number = sampling.constraint, next(self._numbers)
        assert constraint is not None and constraint.grammar is not None
        grammar = constraint.grammar
        plain = replace(constraint, grammar=self._grammars.plain(grammar))
        tokens, most = [*token_ids], sampling.max_tokens
        sequence = RemoteSequence(number, sequence_id, sampling.account, grammar, plain, tokens, most)
        self._by_number[number] = self._sequences[sequence_id] = sequence
        sequence.failure = self._grammars.why_condemned(grammar)
        if self._grammars.is_barred(sequence.account):
            sequence.failure = sequence.failure or TOO_MANY
        return sequence

    def _have_mask(self, region: int, sequence: RemoteSequence) -> None:
        """Have the mask of a sequence made in a region: its first one, or again the one that it has had."""
        sequence.region = region
        if sequence.is_known:
            self.take([(sequence, ())])
        elif sequence.failure is None:
            sequence.is_known = True
            self._note_late(sequence)
            self._send_start(sequence)

    def end(self, sequence_id: int) -> None:
        """Forget a sequence; unknown ids are ignored."""
        sequence = self._sequences.pop(sequence_id, None)
        if sequence is None:
            return
        del self._by_number[sequence.number]
        is_awaited = sequence.is_begun and sequence.number in self.late
        self._forget(sequence)
        if is_awaited:
            self._ending[sequence.number] = sequence
        else:
            self._regions.free(sequence)
        self._send(Turn(ends=(sequence.number,)))
        if sequence in self._suspects:
            self._suspects.remove(sequence)
            self._begin_waiting()

    def take(self, taking: Sequence[tuple[RemoteSequence, tuple[int, ...]]]) -> None:
        """Let sequences take their next tokens, and have the masks behind them made."""
        takes = []
        for sequence, tokens in taking:
            sequence.is_ready, sequence.forced, sequence.ahead = False, (), None
            take = Take(sequence.number, sequence.region, tokens, sequence.ahead_region)
            self._takes[sequence.number] = take
            self._note_late(sequence)
            if sequence.is_begun:
                takes.append(take)
        if takes:
            self._send(Turn(takes=tuple(takes)))

    def draft(self, drafting: Sequence[tuple[RemoteSequence, int, tuple[int, ...]]], until: float) -> None:
        """Have the masks behind draft tokens of sequences made, each from a region on, and wait for them.

        There are none while some of a step before are still being made: they may be in the same regions.
        """
        drafts = []
        for sequence, region, tokens in drafting:
            sequence.drafted, sequence.draft_region = None, region
            if sequence.is_begun and not self._drafts:
                drafts.append(Draft(sequence.number, region, tokens))
                self._drafting[sequence.number] = sequence
        if drafts:
            self._drafts.update(self._drafting)
            self._send(Turn(drafts=tuple(drafts)))
            self.receive(lambda: not self._drafts, until)
            self._drafting.clear()

    def wait_for_masks(self, sequences: Sequence[RemoteSequence]) -> None:
        """Wait for the masks of some sequences: they are there, but for sequences that were not prepared."""
        self.receive(lambda: all(sequence.is_settled for sequence in sequences))

    def wait_for_answers(self, sequences: Sequence[RemoteSequence], until: float) -> None:
        """Wait for what becomes of the tokens that some sequences were to take."""
        self.receive(lambda: not any(sequence.number in self._takes for sequence in sequences), until)

    def is_awaited(self, sequence: RemoteSequence) -> bool:
        """Return whether the process may still write masks of a sequence, which may have ended."""
        return sequence.number in self.late or sequence.number in self._ending

    def masks(self) -> Words:
        """Return the masks in the shared memory, a row for each region."""
        memory = self._workers.memory
        assert memory is not None
        return np.frombuffer(memory.words, np.uint32).reshape(-1, memory.num_words)

    def _send(self, turn: Turn) -> None:
        """Send a turn; what a process does not get that has ended is sent to the next one again."""
        if self._link is not None:
            self._link.send(turn)

    def receive(self, is_done: Callable[[], bool], until: float | None = None) -> None:
        """Read what the process says until `is_done`, or up to the time `until`."""
        while not is_done():
            left = None if until is None else until - self._clock()
            if left is not None and left <= 0:
                self.read(0.0)
                return
            self.read(RETRY_S if left is None else min(left, RETRY_S))

    def read(self, timeout: float) -> None:
        """Read what the process says within a time; start a process if there is none."""
        link = self._link or self._connect()
        if link is None:
            self._miss_process()
            time.sleep(min(timeout, NO_PROCESS_S))
            return
        replies = link.read(timeout)
        if replies is None:
            self._begin_again(link)
            return
        for reply in replies:
            self._apply(reply)

    def _apply(self, reply: Reply) -> None:
        for took in reply.took:
            self._apply_took(took)
        for drafted in reply.drafted:
            self._drafts.discard(drafted.sequence_id)
            if (drafting := self._drafting.get(drafted.sequence_id)) is not None:
                drafting.drafted = drafted if drafted.count >= 0 else None
        for ready in reply.ready:
            self._apply_ready(ready)
        self._clear_suspect()

    def _apply_took(self, took: Took) -> None:
        if took.is_end and (ended := self._ending.pop(took.sequence_id, None)) is not None:
            self._regions.free(ended)
        take = self._takes.pop(took.sequence_id, None)
        if take is None:
            return
        sequence = self._by_number[took.sequence_id]
        # Tokens behind the end do not count, those behind a failure do: they were sampled.
        sequence.tokens += take.token_ids[: took.num_taken] if took.is_complete else take.token_ids
        sequence.failure = sequence.failure or took.failure
        sequence.is_complete = took.is_complete
        if took.is_end:
            sequence.has_answered = True
            self.late.pop(sequence.number, None)
        if took.is_complete or sequence.has_all:
            self.ended[sequence.number] = sequence

    def _apply_ready(self, ready: Ready) -> None:
        if (ended := self._ending.pop(ready.sequence_id, None)) is not None:
            self._regions.free(ended)
            return
        sequence = self._by_number.get(ready.sequence_id)
        if sequence is None:
            return
        self._num_ends = 0
        sequence.has_answered = True
        if sequence.number in self._takes or ready.num_tokens != len(sequence.tokens):
            return
        self.late.pop(sequence.number, None)
        if ready.is_complete:
            sequence.is_complete = True
            self.ended[sequence.number] = sequence
        sequence.is_ready, sequence.is_slow = sequence.region >= 0, ready.is_slow
        sequence.forced, sequence.failure = ready.forced, sequence.failure or ready.failure
        sequence.ahead = ready.ahead

    def _clear_suspect(self) -> None:
        """Let the next suspect begin, or all others, when the first one has done all that it was doing."""
        if not self._suspects:
            return
        first = self._suspects[0]
        is_idle = first.has_answered and first.number not in self.late and first.number not in self._drafts
        if is_idle or first.failure is not None:
            self._suspects.popleft()
            self._begin_waiting()

    def _connect(self) -> WorkerLink | None:
        """Begin all sequences in the process that runs, or in a new one; return None while there is none."""
        link = self._link = self._workers.current()
        if link is None:
            return None
        self._missed_at = None
        self._begin_waiting()
        return self._link

    def _begin_waiting(self) -> None:
        """Begin all sequences that have not begun in the process that runs, as far as they may."""
        waiting = (each for each in self._sequences.values() if not each.is_begun and each.failure is None)
        for sequence in sorted(waiting, key=lambda each: not each.has_row):  # these are wanted first
            self._send_start(sequence)

    def _send_start(self, sequence: RemoteSequence) -> None:
        """Begin a sequence in the process that runs, with the tokens that the last process was to let it take.

        While there are suspects the first one is alone: if others were there, it could be blamed for what they do.
        """
        if self._link is None or (self._suspects and sequence is not self._suspects[0]):
            return
        sequence.is_begun, sequence.has_answered = True, False
        take, region = self._takes.get(sequence.number), sequence.region
        start = Start(
            sequence.number,
            -1 if sequence.is_ready or take is not None else region,
            sequence.account,
            sequence.constraint,
            tuple(sequence.tokens),
            *self._grammars.cost_of(sequence.grammar),
        )
        self._send(Turn(starts=(start,), takes=() if take is None else (take,)))

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
            self._num_ends = 0
            self._blame(culprit, reason)
        else:
            found = (self._by_number.get(each) for each in link.suspects)
            self._suspects.extend(each for each in found if each is not None and each.failure is None)
        for ended in self._ending.values():
            self._regions.free(ended)
        self._ending.clear()
        self._drafts.clear()
        for sequence in self._sequences.values():
            sequence.is_begun = False
        if self._num_ends >= MAX_ENDS:
            self._fail_all()
        elif self._sequences:
            self._connect()

    def _blame(self, culprit: RemoteSequence, reason: str) -> None:
        """Let a sequence fail, and those of its account with the same grammar; all of it beyond its allowance.

        So an account can end few processes, whatever it has sent before the first of them.
        """
        self._grammars.condemn(culprit.grammar, reason, culprit.account)
        is_barred = self._grammars.is_barred(culprit.account)
        for sequence in (culprit, *self._sequences.values()):
            is_same = sequence.grammar == culprit.grammar
            if sequence.account == culprit.account and (is_same or is_barred):
                self._fail(sequence, reason if is_same else TOO_MANY)

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
            self._fail(sequence, NO_PROCESS)
        self._suspects.clear()

    def _fail(self, sequence: RemoteSequence, reason: str) -> None:
        """Let a sequence fail at its next token; one whose answer has ended has none, and does not."""
        take = self._takes.pop(sequence.number, None)
        self.late.pop(sequence.number, None)
        if sequence.number in self.ended:
            return
        if take is not None:
            sequence.tokens += take.token_ids
        if take is not None and sequence.has_all:
            self.ended[sequence.number] = sequence
        else:
            sequence.failure = sequence.failure or reason

    def _forget(self, sequence: RemoteSequence) -> None:
        for found in (self.late, self.ended, self._takes):
            found.pop(sequence.number, None)

    def _note_late(self, sequence: RemoteSequence) -> None:
        if not self.late:
            self._missed_at = None
        self.late[sequence.number] = sequence
        sequence.asked_at = self._clock()
