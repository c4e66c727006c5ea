"""The sequences with grammars as the process that finds their masks knows them: what it is told, and what it says.

When that process ends, the sequence that it has worked on for too long fails, and another process begins with the
tokens of all others. It may also have ended for want of memory, or by somebody's signal: where several sequences may be
the reason, they are tried one after the other, until it ends again at one of them.
"""

from __future__ import annotations

import select
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count

import numpy as np

from app.contract.grammar import Constraint, Grammar
from app.engine.execute.masks import Words
from app.engine.schedule.step_plan import RowStart
from app.runtime.clock import Clock, monotonic
from app.text.grammar.cache import GrammarCache
from app.text.grammar.children.mask_messages import Draft, Messages, Ready, Reply, Start, Take, Took, Turn, encode
from app.text.grammar.children.mask_workers import MaskWorkers, WorkerLink

RETRY_S, NO_PROCESS_S = 1.0, 0.005
READ_BYTES = 64 * 2**10
TOO_COSTLY = "Its next tokens take more than 0.1 s of processor time to find"
TOO_LARGE = "Its next tokens take more memory or time to find than is allowed"
TOO_MANY = "Other grammars of the same client have cost too much"
NO_PROCESS = "The process that applies grammars ends again and again"
MISSING_S = 15.0
"""How long sequences wait for a process to begin in, on a busy machine: less than the watchdog's time."""
MAX_ENDS = 20
"""Processes that end in a row, without a mask in between and without a reason, until all sequences fail."""


@dataclass(slots=True, eq=False)
class RemoteSequence:
    """A sequence with a grammar: what the other process knows of it, and has found."""

    number: int  # what the other process knows it by: a sequence that begins again is another one there
    id: int
    account: str
    grammar: Grammar  # as the request has it
    constraint: Constraint  # as the other process gets it
    tokens: list[int]
    region: int = -1
    has_row: bool = False
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


class RemoteSequences:
    """All sequences with grammars, and the process that finds their masks. Engine thread only.

    `num_regions` masks of sequences are kept in the shared memory.

    Attributes:
        late: those whose masks are not there, by number.
    """

    def __init__(
        self, workers: MaskWorkers, grammars: GrammarCache, num_regions: int, clock: Clock = monotonic
    ) -> None:
        self.late: dict[int, RemoteSequence] = {}
        self._workers = workers
        self._grammars = grammars
        self._clock = clock
        self._numbers = count(1)
        self._sequences: dict[int, RemoteSequence] = {}
        self._by_number: dict[int, RemoteSequence] = {}
        self._link: WorkerLink | None = None
        self._replies = Messages(Reply)
        self._unread = b""  # what came while something was sent
        self._num_ends = 0  # of processes, in a row
        self._missed_at: float | None = None  # since when there has been no process
        self._regions = list(range(num_regions))
        self._ending: dict[int, RemoteSequence] = {}  # ended ones that the process may still write the mask of
        self._takes: dict[int, Take] = {}  # without an answer yet
        self._drafts: dict[int, Draft] = {}
        self._suspects: deque[RemoteSequence] = deque()  # begin again one after the other

    def get(self, sequence_id: int) -> RemoteSequence | None:
        """Return a sequence; None if it has not begun."""
        return self._sequences.get(sequence_id)

    def start(self, start: RowStart, constraint: Constraint, grammar: Grammar) -> RemoteSequence:
        """Return the sequence that takes a row: as it was, or begun with the tokens that it has."""
        sequence = self._sequences.get(start.sequence_id)
        if sequence is not None and sequence.tokens != list(start.output_token_ids):
            self.end(start.sequence_id)  # a step whose tokens it has taken has failed afterwards
            sequence = None
        if sequence is None:
            region, number = self._take_region(), next(self._numbers)
            plain = replace(constraint, grammar=self._grammars.plain(grammar))
            known = (start.sequence_id, start.sampling.account, grammar, plain, [*start.output_token_ids])
            sequence = RemoteSequence(number, *known, region)
            self._by_number[number] = self._sequences[start.sequence_id] = sequence
            sequence.failure = self._grammars.why_condemned(grammar)
            if self._grammars.is_barred(sequence.account):
                sequence.failure = sequence.failure or TOO_MANY
            if sequence.failure is None:
                self._send_start(sequence)
        elif sequence.region < 0 and sequence.failure is None:
            sequence.region = self._take_region()
            self.take([(sequence, ())])
        return sequence

    def end(self, sequence_id: int) -> None:
        """Forget a sequence; unknown ids are ignored."""
        sequence = self._sequences.pop(sequence_id, None)
        if sequence is None:
            return
        del self._by_number[sequence.number]
        is_awaited = sequence.is_begun and (sequence.number in self.late or not sequence.is_settled)
        self._forget(sequence)
        if is_awaited:
            self._ending[sequence.number] = sequence
        else:
            self._free_region(sequence)
        self._send(Turn(ends=(sequence.number,)))
        if sequence in self._suspects:
            self._suspects.remove(sequence)
            self._try_suspect()

    def take(self, taking: Sequence[tuple[RemoteSequence, tuple[int, ...]]]) -> None:
        """Let sequences take their next tokens."""
        for sequence, tokens in taking:
            sequence.is_ready, sequence.forced, sequence.took = False, (), None
            self._takes[sequence.number] = Take(sequence.number, sequence.region, tokens)
        if taking:
            self._send(Turn(takes=tuple(self._takes[sequence.number] for sequence, _ in taking)))

    def draft(self, drafting: Sequence[tuple[RemoteSequence, int, tuple[int, ...]]]) -> None:
        """Ask for the masks behind draft tokens of sequences, each from a region on."""
        for sequence, region, tokens in drafting:
            sequence.num_drafted = 0
            self._drafts[sequence.number] = Draft(sequence.number, region, tokens)
        if drafting:
            self._send(Turn(drafts=tuple(self._drafts[sequence.number] for sequence, _, _ in drafting)))

    def wait_for_masks(self, sequences: Sequence[RemoteSequence]) -> None:
        """Wait for all masks of some sequences; a process that has ended meanwhile makes them again."""
        self.receive(lambda: not self._drafts and all(sequence.is_settled for sequence in sequences))

    def wait_for_answers(self, sequences: Sequence[RemoteSequence]) -> None:
        """Wait until it is known what has become of the tokens that some sequences were to take."""
        self.receive(lambda: not any(sequence.number in self._takes for sequence in sequences))

    def masks(self) -> Words:
        """Return the masks in the shared memory, a row for each region."""
        memory = self._workers.memory
        assert memory is not None
        return np.frombuffer(memory.words, np.uint32).reshape(-1, memory.num_words)

    def _send(self, turn: Turn) -> None:
        """Send a turn; what a process does not get that has ended is sent to the next one again.

        What the process says meanwhile is kept: it reads nothing while nobody reads what it says.
        """
        if self._link is None:
            return
        steps, data = self._link.steps, memoryview(encode(turn))
        with suppress(OSError, ValueError):  # as in `read`
            while data:
                try:
                    data = data[steps.send(data, socket.MSG_DONTWAIT) :]
                except BlockingIOError:
                    if select.select([steps], [steps], [])[0]:
                        self._unread += steps.recv(READ_BYTES)

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
        try:
            if self._unread:
                data, self._unread = self._unread, b""
            elif select.select([link.steps], [], [], timeout)[0]:
                data = link.steps.recv(READ_BYTES)
            else:
                return
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
            sequence.took = took if take.token_ids else None
            sequence.failure = sequence.failure or took.failure
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
        self.late.pop(sequence.number, None)
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
        self._replies, self._unread = Messages(Reply), b""
        for sequence in self._sequences.values():
            if sequence.failure is None and sequence not in self._suspects:
                self._send_start(sequence)
        self._try_suspect()
        return self._link

    def _send_start(self, sequence: RemoteSequence) -> None:
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
            self._num_ends = 0
            self._blame(culprit, reason)
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

    def _blame(self, culprit: RemoteSequence, reason: str) -> None:
        """Let a sequence fail, and those of its account with the same grammar; all of it beyond its allowance.

        So an account can end few processes, whatever it has sent before the first of them.
        """
        self._grammars.condemn(culprit.grammar, reason, culprit.account)
        is_barred = self._grammars.is_barred(culprit.account)
        for sequence in (culprit, *self._sequences.values()):
            is_same = sequence.grammar == culprit.grammar
            if sequence.account == culprit.account and (is_same or is_barred):
                sequence.failure = sequence.failure or (reason if is_same else TOO_MANY)
                self._forget(sequence)

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
        for found in (self.late, self._takes, self._drafts, self._suspects):
            found.clear()

    def _forget(self, sequence: RemoteSequence) -> None:
        for found in (self.late, self._takes, self._drafts):
            found.pop(sequence.number, None)

    def _note_late(self, sequence: RemoteSequence) -> None:
        self.late[sequence.number] = sequence
        sequence.asked_at = self._clock()

    def _take_region(self) -> int:
        """Return a region for a mask; where none is free, that of a sequence without a row whose mask is there."""
        if self._regions:
            return self._regions.pop()
        others = [each for each in self._sequences.values() if each.region >= 0 and not each.has_row]
        self.receive(lambda: bool(self._regions) or any(each.is_settled for each in others))
        if not self._regions:
            self._free_region(next(each for each in others if each.is_settled))
        return self._regions.pop()

    def _free_region(self, sequence: RemoteSequence) -> None:
        if sequence.region >= 0:
            self._regions.append(sequence.region)
            sequence.region = -1
