"""The process that owns the matchers of all sequences with grammars, and finds the tokens that each may have next.

A grammar that compiles at once can still take seconds and gigabytes for one mask. So masks are made here, where a row
that costs too much ends this process and not the server: the first note in the shared memory names the sequence. The
server starts another process, which begins with the tokens that the other sequences have, and finds the same masks.

    main thread     reads turns, lets sequences take tokens whose grammars nobody works on, answers at once
    mask threads    begin sequences, let the others take tokens, and make masks: first for accounts that have cost least
    compile threads compile the grammars of sequences that begin, in the same order, one of them those that take long;
                    that counts for no sequence
    watching thread ends the process when a thread works on one sequence for too much of its processor time
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

from app.contract.errors import InvalidValue
from app.runtime.process_limits import limit_memory
from app.text.grammar.children.kept_grammars import KeptGrammars
from app.text.grammar.children.mask_jobs import Jobs
from app.text.grammar.children.mask_memory import COMPILERS, MAIN, NO_SEQUENCE, WATCHER, MaskMemory
from app.text.grammar.children.mask_messages import (
    MAX_AHEAD,
    READ_BYTES,
    Draft,
    Drafted,
    Messages,
    Ready,
    Reply,
    Setup,
    Start,
    Take,
    Took,
    Turn,
    encode,
    read_message,
)
from app.text.grammar.children.mask_writer import MaskWriter
from app.text.grammar.children.shared_lexer import SharedLexer
from app.text.grammar.children.work_times import TICK_S, WorkTimes
from app.text.grammar.children.worker_row import Job, Row
from app.text.grammar.compiled import CompiledGrammar
from app.text.grammar.row_mask import Replay, RowMask
from app.text.grammar.vocabulary import GrammarVocabulary

MEMORY_BYTES = 512 * 2**20
THREAD_BYTES = 72 * 2**20
"""Address space that the system sets aside for each thread."""
SLOW_S = 0.001
IDLE_S = 0.5
REPORT_S = 0.002
"""Masks are told together where they are all found within this time."""


class MaskWorker:
    """Runs the process. `steps` is the engine's socket, `memory` the descriptor of what is shared with it.

    `limit_s` is the most processor time of a thread for one sequence in a step.
    """

    def __init__(self, steps: socket.socket, memory: int, vocabulary: GrammarVocabulary, limit_s: float) -> None:
        setup = read_message(steps, Setup)
        if setup is None:
            os._exit(0)
        self._setup = setup
        self._steps, self._vocabulary = steps, vocabulary
        self._memory = MaskMemory(memory, setup.num_words, setup.num_regions)
        self._writer = MaskWriter(self._memory, setup)
        self._rows: dict[int, Row] = {}
        self._jobs = Jobs(self._begin)
        self._ready: list[Ready] = []
        self._drafted: list[Drafted] = []
        self._began = 0.0  # when the oldest result that is not told was found
        self._sending = threading.Lock()
        self._grammars = KeptGrammars()
        self._times = WorkTimes(self._memory.notes, limit_s)
        self._times.add(MAIN, threading.current_thread())

    def run(self) -> None:
        """Work until the server closes the socket of the engine."""
        limit_memory(MEMORY_BYTES + (self._setup.num_threads + len(COMPILERS) + 2) * THREAD_BYTES)
        sys.setswitchinterval(0.0005)
        works: list[Callable[[int], None]] = [self._compile_all] * len(COMPILERS)
        works += [self._work] * self._setup.num_threads
        for index, work in enumerate(works, MAIN + 1):
            thread = threading.Thread(target=self._guarded, args=(work, index), daemon=True)
            if index not in COMPILERS:
                self._times.add(index, thread)
            thread.start()
        threading.Thread(target=self._guarded, args=(self._watch, WATCHER), daemon=True).start()
        turns = Messages(Turn)
        while data := self._steps.recv(READ_BYTES):
            self._times.note(MAIN, NO_SEQUENCE)  # to decode turns may take long, too, and so may to free the last ones
            found = turns.feed(data)
            for turn in found:
                self._take_turn(turn)
            self._times.note(MAIN, 0)

    # --- Main thread ----------------------------------------------------------------------------------------------

    def _take_turn(self, turn: Turn) -> None:
        self._times.note(MAIN, NO_SEQUENCE)  # to free what sequences and their grammars leave may take long
        self._forget(turn.ends)
        rows = [self._new(start) for start in turn.starts]
        self._times.note(MAIN, 0)  # before others work on one: each could be the only one at work
        for row in rows:
            self._jobs.begin(row)
        if turn.takes:
            self._take_all(turn.takes)
        for draft in turn.drafts:
            self._jobs.put([self._rows[draft.sequence_id]], partial(self._draft, draft))

    def _forget(self, sequence_ids: Sequence[int]) -> None:
        for sequence_id in sequence_ids:
            if (row := self._rows.pop(sequence_id, None)) is not None:
                row.is_ended = True

    def _new(self, start: Start) -> Row:
        assert start.constraint.grammar is not None
        row = self._rows[start.sequence_id] = Row(start, self._grammars.lexer(start.constraint.grammar), self._find)
        return row

    def _take_all(self, takes: Sequence[Take]) -> None:
        """Let sequences take tokens, and say what became of that; find their next masks, or let threads do that.

        Those whose grammars some thread works on must wait for it, and nobody else does.
        """
        rows = [self._rows[take.sequence_id] for take in takes]
        held = self._jobs.hold(rows)
        took, going_on = [], []
        again: list[tuple[Row, Job]] = []
        for row, take in zip(rows, takes, strict=True):
            if row not in held:
                self._jobs.put([row], partial(self._take_later, take))
                continue
            self._times.note(MAIN, take.sequence_id)
            if (taken := self._take(row, take)) is None:
                again.append((row, partial(self._take_later, take)))
                continue
            took.append(taken)
            if not taken.is_end:
                going_on.append(row)
        ready: list[Ready] = []
        if is_quick := self._jobs.is_quick(going_on):
            found = [(row, self._find_here(row)) for row in going_on]
            ready = [each for _, each in found if each is not None]
            again += [(row, self._find) for row, each in found if each is None]
        self._times.note(MAIN, 0)
        self._jobs.release(held)
        with self._sending:
            self._ready += ready  # told behind what was taken, not before by another thread
            self._tell(tuple(took))
        if not is_quick:
            self._jobs.put(going_on, self._find)
        for row, job in again:
            self._times.note(MAIN, NO_SEQUENCE)  # it may free a lexer
            self._jobs.begin_again(row, job, self._other_lexer(row))
            self._times.note(MAIN, 0)

    def _take(self, row: Row, take: Take) -> Took | None:
        """Let a sequence take tokens up to its end or a failure; None where it must begin again first."""
        mask = row.mask
        assert mask is not None
        may_go_on = self._may_go_on(row)
        for token_id in take.token_ids[row.num_taken :]:
            if not may_go_on or mask.failure is not None or (row.num_taken and mask.is_complete):
                break
            row.num_taken += 1
            mask.take(token_id)
            may_go_on = self._may_go_on(row)
        if not may_go_on:
            return None
        num_taken, row.num_taken, row.num_rounds = row.num_taken, 0, 0
        row.region, row.ahead = take.region, take.ahead
        row.num_tokens += num_taken
        return Took(take.sequence_id, num_taken, mask.is_complete, mask.failure)

    def _find_here(self, row: Row) -> Ready | None:
        """Make the next mask of a sequence on the main thread, which is quicker than to wake another one."""
        began = time.thread_time()
        self._times.note(MAIN, row.start.sequence_id)
        ready = self._next(row)
        self._jobs.spend(row, time.thread_time() - began)
        return ready

    # --- Mask threads ---------------------------------------------------------------------------------------------

    def _work(self, index: int) -> None:
        while True:  # without a name for a sequence: the last one would keep its grammar, of megabytes, until the next
            has_no_more = self._do(index, *self._jobs.take())
            self._times.note(index, 0)
            with self._sending:
                if has_no_more or time.perf_counter() - self._began > REPORT_S:
                    self._tell()

    def _do(self, index: int, row: Row, job: Job) -> bool:
        """Do a job; return whether no other one can be begun."""
        began = time.thread_time()
        self._times.note(index, row.start.sequence_id)
        rest = job(row)
        self._times.note(index, NO_SEQUENCE)  # until all is freed that is left, which may be others'
        seconds = time.thread_time() - began
        if rest is None:
            return self._jobs.end(row, seconds)
        return self._jobs.end_to_begin_again(row, rest, self._other_lexer(row), seconds)

    def _begin(self, row: Row) -> Job | None:
        """Let a sequence take the tokens that it has; it fails if its grammar was refused."""
        constraint, token_ids, compiled = row.start.constraint, row.token_ids, row.lexer.compiled
        if compiled is None:
            row.mask = RowMask(constraint, None, token_ids)
            row.mask.failure = row.lexer.refusal
            return row.job(row)
        if compiled.is_spent:
            return row.job
        mask = row.mask = RowMask(constraint, compiled.matcher(), (), self._vocabulary.digits)
        index, replay = self._times.index(), Replay(mask)
        for token_id in token_ids:
            if row.is_ended:
                break
            self._times.note(index, row.start.sequence_id)  # each token may cost what a step may
            replay.take(token_id)
        self._times.note(index, row.start.sequence_id)
        row.is_stale, row.is_new = False, True
        rest = row.job(row) if self._may_go_on(row) else row.job
        row.is_new = False
        return rest

    def _take_later(self, take: Take, row: Row) -> Job | None:
        """Let a sequence take tokens, and find its next mask."""
        if (took := self._take(row, take)) is None:
            return partial(self._take_later, take)
        with self._sending:
            self._tell((took,))
        if took.is_end:
            return None
        self._times.note(self._times.index(), take.sequence_id)  # the mask may cost as much again
        return self._find(row)

    def _find(self, row: Row) -> Job | None:
        """Make the mask of a sequence, and say so."""
        if (ready := self._next(row)) is None:
            return self._find
        self._add(ready)
        return None

    def _next(self, row: Row) -> Ready | None:
        """Make the mask of a sequence, and ask for the tokens that must come next; None where it must begin again."""
        mask = row.mask
        assert mask is not None
        began = time.thread_time()
        forced: tuple[int, ...] = ()
        if mask.failure is None and not row.is_ended:
            if not self._may_go_on(row):
                return None
            self._writer.write(mask, row.region, mask.place, mask.end)
            if not self._may_go_on(row):
                return None
            if mask.failure is None:
                forced = tuple(mask.forced())
        is_slow = time.thread_time() - began > SLOW_S
        ahead: Drafted | None = None
        if forced and not is_slow and row.ahead >= 0:
            self._times.note(self._times.index(), row.start.sequence_id)  # they may cost as much again
            ahead = self._behind(row, row.ahead, forced[:MAX_AHEAD])
        is_complete = row.num_tokens > 0 and mask.is_complete
        return Ready(row.start.sequence_id, row.num_tokens, is_slow, mask.failure, forced, ahead, is_complete)

    def _draft(self, draft: Draft, row: Row) -> None:
        """Make the masks behind draft tokens."""
        none = Drafted(draft.sequence_id, -1)
        self._add(self._behind(row, draft.region, draft.token_ids) or none)

    def _behind(self, row: Row, first_region: int, token_ids: Sequence[int]) -> Drafted | None:
        """Make the masks behind tokens that may follow; None where they cannot be made.

        What is in error behind tokens that may never come must not fail the sequence: it begins again.
        """
        mask = row.mask
        assert mask is not None
        if row.region < 0 or not self._may_go_on(row):
            return None
        found = self._writer.write_behind(mask, row.region, first_region, token_ids)
        if mask.is_broken:
            self._failure_of(row)
            row.is_stale = True
            return None
        return Drafted(row.start.sequence_id, *found)

    # --- Compile threads ------------------------------------------------------------------------------------------

    def _compile_all(self, index: int) -> None:
        while True:
            self._compile_for_all(index, *self._jobs.next_to_compile(is_long=COMPILERS[index]))
            self._times.note(index, 0)

    def _compile_for_all(self, index: int, lexer: SharedLexer, row: Row) -> None:
        self._times.note(index, row.start.sequence_id)
        began = time.thread_time()
        compiled = self._compile(lexer, row)
        self._times.note(index, NO_SEQUENCE)  # until all is freed that is left, as in `_do`
        self._jobs.end_compiling(lexer, compiled, row, time.thread_time() - began)

    def _compile(self, lexer: SharedLexer, row: Row) -> CompiledGrammar | str:
        """Return the compiled grammar of a sequence, or why there is none."""
        try:
            compiled = CompiledGrammar.compile(row.grammar, self._vocabulary, is_again=lexer.is_again)
        except InvalidValue as error:
            self._grammars.drop(row.grammar, lexer)
            return error.message
        self._grammars.keep(row.grammar, lexer, row.start.num_bytes)
        return compiled

    # --- Errors, on any thread that works on the grammar ----------------------------------------------------------

    def _may_go_on(self, row: Row) -> bool:
        """Return whether a sequence can go on, or has failed; if not, it must begin again."""
        mask = row.mask
        assert mask is not None
        if mask.failure is None and not row.is_stale and not row.lexer.is_spent:
            if not mask.is_broken:
                return True
            mask.failure = self._failure_of(row)
        return mask.failure is not None

    def _failure_of(self, row: Row) -> str | None:
        """Return why a sequence fails whose matcher is in error; None if it may begin again."""
        lexer, mask = row.lexer, row.mask
        assert lexer.compiled is not None and mask is not None and mask.matcher is not None
        failure = lexer.compiled.failure_of(mask.matcher, is_new=row.is_new, num_rounds=row.num_rounds)
        if lexer.is_spent:  # its memory is needed for the next one
            row.num_spent += 1
            row.num_rounds += 1
            for other in [*self._rows.values(), row]:
                if other.lexer is lexer and other.mask is not None:
                    other.mask.matcher = None
        return failure

    def _other_lexer(self, row: Row) -> SharedLexer:
        """Return the lexer that a sequence begins again with: its own where only its drafts were in error."""
        if not row.lexer.is_spent:
            return row.lexer
        return self._grammars.lexer_again(row.grammar, row.num_spent)

    # --- All threads ----------------------------------------------------------------------------------------------

    def _add(self, result: Ready | Drafted) -> None:
        with self._sending:
            if not self._ready and not self._drafted:
                self._began = time.perf_counter()
            if isinstance(result, Ready):
                self._ready.append(result)
            else:
                self._drafted.append(result)

    def _tell(self, took: tuple[Took, ...] = ()) -> None:
        """Say which masks are there. Under `_sending`."""
        if took or self._ready or self._drafted:
            self._steps.sendall(encode(Reply(took, tuple(self._ready), tuple(self._drafted))))
            self._ready, self._drafted = [], []

    def _guarded(self, work: Callable[[int], None], index: int) -> None:
        """Run a thread; without it the process is of no use."""
        try:
            work(index)
        finally:
            os._exit(1)

    # --- Watching thread ------------------------------------------------------------------------------------------

    def _watch(self, index: int) -> None:
        while True:
            if not self._jobs.num_open and not self._memory.notes[MAIN]:
                self._times.forget()
                self._jobs.begun.wait(IDLE_S)
            self._times.arm()
            self._shrink(index)
            time.sleep(TICK_S)
            self._jobs.share()
            with self._sending:
                if time.perf_counter() - self._began > REPORT_S:
                    self._tell()  # for threads that work on something else already
            self._times.check()

    def _shrink(self, index: int) -> None:
        """Give memory back; end the process if that leaves too much of it and no sequence is here to need it."""
        self._times.note(index, NO_SEQUENCE)
        is_large = self._grammars.shrink()
        self._times.note(index, 0)
        if is_large and not self._rows:  # one that begins just now begins again in the next process
            os._exit(0)
