"""The process that owns the matchers of all sequences with grammars, and finds the tokens that each may have next.

A grammar that compiles at once can still take seconds and gigabytes for one mask. So masks are made here, where a row
that costs too much ends this process and not the server: the first note in the shared memory names the sequence. The
server starts another process, which begins with the tokens that the other sequences have, and finds the same masks.

    main thread     reads turns, lets sequences take tokens whose grammars nobody works on, answers at once
    mask threads    begin sequences, let the others take tokens, and make masks: first for accounts that have cost least
    compile thread  compiles the grammars of sequences that begin, in the same order; it counts for no sequence
    watching thread ends the process when a thread works on one sequence for more than LIMIT_S of its processor time
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from app.contract.errors import InvalidValue
from app.runtime.process_limits import limit_memory
from app.text.grammar.children.kept_grammars import KeptGrammars
from app.text.grammar.children.mask_jobs import Jobs, Row
from app.text.grammar.children.mask_memory import NUM_NOTES, MaskMemory
from app.text.grammar.children.mask_messages import (
    LIMIT_S,
    MAX_AHEAD,
    READ_BYTES,
    Draft,
    Drafted,
    Messages,
    Ready,
    Reply,
    Setup,
    Take,
    Took,
    Turn,
    encode,
    read_message,
)
from app.text.grammar.children.mask_writer import MaskWriter
from app.text.grammar.compile import compile_grammar, error_of
from app.text.grammar.row_mask import RowMask
from app.text.grammar.vocabulary import GrammarVocabulary

if TYPE_CHECKING:
    from llguidance import LLMatcher

MEMORY_BYTES = 512 * 2**20
THREAD_BYTES = 72 * 2**20
"""Address space that the system sets aside for each thread."""
SLOW_S = 0.001
TICK_S, IDLE_S = 0.01, 0.5
STUCK_S = 0.5
"""Processor time after which the system ends the process, if the watching thread cannot: a call may keep the lock."""
REPORT_S = 0.002
"""Masks are told together where they are all found within this time."""
NOT_NEEDED = "It has ended"
MAIN, COMPILER = 1, 2  # notes; those of the mask threads follow


class MaskWorker:
    """Runs the process. `steps` is the engine's socket, `memory` the descriptor of what is shared with it."""

    def __init__(self, steps: socket.socket, memory: int, vocabulary: GrammarVocabulary) -> None:
        setup = read_message(steps, Setup)
        if setup is None:
            os._exit(0)
        self._setup = setup
        self._steps, self._vocabulary = steps, vocabulary
        self._memory = MaskMemory(memory, setup.num_words, setup.num_regions)
        self._writer = MaskWriter(self._memory, setup)
        self._rows: dict[int, Row] = {}
        self._jobs = Jobs()
        self._ready: list[Ready] = []
        self._drafted: list[Drafted] = []
        self._began = 0.0  # when the oldest result that is not told was found
        self._sending = threading.Lock()
        self._grammars = KeptGrammars()
        self._is_compiling = False
        self._calls = [0] * NUM_NOTES  # of each thread: counts what it has worked on
        self._threads: dict[int, threading.Thread] = {MAIN: threading.current_thread()}

    def run(self) -> None:
        """Work until the server closes the socket of the engine."""
        limit_memory(MEMORY_BYTES + (self._setup.num_threads + 3) * THREAD_BYTES)
        sys.setswitchinterval(0.0005)
        works: list[Callable[[int], None]] = [self._compile_all, *[self._work] * self._setup.num_threads]
        for index, work in enumerate(works, COMPILER):
            thread = threading.Thread(target=self._guarded, args=(work, index), daemon=True)
            if index != COMPILER:
                self._threads[index] = thread
            thread.start()
        threading.Thread(target=self._guarded, args=(self._watch, 0), daemon=True).start()
        turns = Messages(Turn)
        while data := self._steps.recv(READ_BYTES):
            self._arm()
            for turn in turns.feed(data):
                self._take_turn(turn)

    # --- Main thread ----------------------------------------------------------------------------------------------

    def _take_turn(self, turn: Turn) -> None:
        for sequence_id in turn.ends:
            if (row := self._rows.pop(sequence_id, None)) is not None:
                row.is_ended = True
        for start in turn.starts:
            grammar = start.constraint.grammar
            assert grammar is not None
            row = self._rows[start.sequence_id] = Row(start, self._grammars.lexer(grammar))
            if (prototype := self._grammars.get(grammar)) is not None:
                self._jobs.begin(row, partial(self._begin, prototype))
            else:
                self._jobs.compile_for(row)
        if turn.takes:
            self._take_all(turn.takes)
        for draft in turn.drafts:
            self._jobs.put([self._rows[draft.sequence_id]], partial(self._draft, draft))

    def _take_all(self, takes: Sequence[Take]) -> None:
        """Let sequences take tokens, and say what became of that; find their next masks, or let threads do that.

        Those whose grammars some thread works on must wait for it, and nobody else does.
        """
        rows = [self._rows[take.sequence_id] for take in takes]
        held = self._jobs.hold(rows)
        took, going_on = [], []
        for row, take in zip(rows, takes, strict=True):
            if row not in held:
                self._jobs.put([row], partial(self._take_later, take))
                continue
            self._note(MAIN, take.sequence_id)
            took.append(_take(row, take))
            if _goes_on(took[-1]):
                going_on.append(row)
        is_quick = self._jobs.is_quick(going_on)
        ready = [self._find_here(row) for row in going_on] if is_quick else []
        self._note(MAIN, 0)
        self._jobs.release(held)
        with self._sending:
            self._ready += ready  # told behind what was taken, not before by another thread
            self._tell(tuple(took))
        if not is_quick:
            self._jobs.put(going_on, self._find)

    def _find_here(self, row: Row) -> Ready:
        """Make the next mask of a sequence on the main thread, which is quicker than to wake another one."""
        began = time.thread_time()
        self._note(MAIN, row.start.sequence_id)
        ready = self._next(row)
        self._jobs.spend(row, time.thread_time() - began)
        return ready

    # --- Mask threads ---------------------------------------------------------------------------------------------

    def _work(self, index: int) -> None:
        while True:
            row, job = self._jobs.take()
            began = time.thread_time()
            self._note(index, row.start.sequence_id)
            job(row)
            self._note(index, 0)
            has_no_more = self._jobs.end(row, time.thread_time() - began)
            with self._sending:
                if has_no_more or time.perf_counter() - self._began > REPORT_S:
                    self._tell()

    def _begin(self, prototype: LLMatcher | str, row: Row) -> None:
        """Begin a sequence with the tokens that it has; it fails where a text says why there is no `prototype`."""
        constraint, sequence_id = row.start.constraint, row.start.sequence_id
        if isinstance(prototype, str):
            row.mask = RowMask(constraint, None, ())
            row.mask.failure = prototype
            self._find(row)
            return
        row.mask = RowMask(constraint, prototype.deep_copy(), (), self._vocabulary.digits)
        index = self._index()
        for token_id in row.start.token_ids:
            if row.is_ended:
                break
            self._note(index, sequence_id)  # each token may cost what a step may
            row.mask.take(token_id)
        self._note(index, sequence_id)
        self._find(row)

    def _take_later(self, take: Take, row: Row) -> None:
        """Let a sequence take tokens, and find its next mask."""
        took = _take(row, take)
        with self._sending:
            self._tell((took,))
        if _goes_on(took):
            self._note(self._index(), take.sequence_id)  # the mask may cost as much again
            self._find(row)

    def _find(self, row: Row) -> None:
        """Make the mask of a sequence, and say so."""
        self._add(self._next(row))

    def _next(self, row: Row) -> Ready:
        """Make the mask of a sequence, and ask for the tokens that must come next."""
        mask = row.mask
        assert mask is not None
        began = time.thread_time()
        forced: tuple[int, ...] = ()
        if mask.failure is None and not row.is_ended:
            self._writer.write(mask, row.region, mask.place, mask.end)
            if mask.failure is None:
                forced = tuple(mask.forced())
        is_slow = time.thread_time() - began > SLOW_S
        ahead: Drafted | None = None
        if forced and not is_slow and row.ahead >= 0:
            self._note(self._index(), row.start.sequence_id)  # they may cost as much again
            ahead = Drafted(row.start.sequence_id, *self._writer.write_behind(mask, row.ahead, forced[:MAX_AHEAD]))
        return Ready(row.start.sequence_id, row.num_tokens, is_slow, mask.failure, forced, ahead)

    def _draft(self, draft: Draft, row: Row) -> None:
        """Make the masks behind draft tokens."""
        assert row.mask is not None
        self._add(Drafted(draft.sequence_id, *self._writer.write_behind(row.mask, draft.region, draft.token_ids)))

    # --- Compile thread -------------------------------------------------------------------------------------------

    def _compile_all(self, index: int) -> None:
        while True:
            row = self._jobs.next_to_compile()
            self._is_compiling = True
            self._memory.notes[index] = row.start.sequence_id
            began = time.thread_time()
            prototype = self._compiled(row)
            self._memory.notes[index] = 0
            self._is_compiling = False
            self._jobs.end_compiling(row, time.thread_time() - began)
            self._jobs.begin(row, partial(self._begin, prototype))

    def _compiled(self, row: Row) -> LLMatcher | str:
        """Return the compiled grammar of a sequence, or why there is none."""
        grammar = row.start.constraint.grammar
        assert grammar is not None
        if row.is_ended:
            return NOT_NEEDED
        if (known := self._grammars.get(grammar)) is not None:
            return known
        try:
            prototype = compile_grammar(grammar, self._vocabulary)
        except InvalidValue as error:
            return error.message
        self._grammars.keep(grammar, prototype, row.start.num_bytes)
        return prototype

    # --- All threads ----------------------------------------------------------------------------------------------

    def _index(self) -> int:
        thread = threading.current_thread()
        return next(index for index, each in self._threads.items() if each is thread)

    def _note(self, index: int, sequence_id: int) -> None:
        """Note which sequence a thread works on from now on."""
        self._calls[index] += 1
        self._memory.notes[index] = sequence_id

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

    def _arm(self) -> None:
        """Let the system end the process unless it comes here again: before any work, and while there is some."""
        signal.setitimer(signal.ITIMER_PROF, STUCK_S)

    @property
    def _is_working(self) -> bool:
        return self._jobs.num_open > 0 or self._memory.notes[MAIN] != 0 or self._is_compiling

    def _watch(self, _: int) -> None:
        seen: dict[int, tuple[int, float]] = {}  # of each thread: what it worked on, and its processor time then
        while True:
            if not self._is_working:
                seen.clear()
                self._jobs.begun.wait(IDLE_S)
            self._arm()
            self._grammars.drop_grown()
            time.sleep(TICK_S)
            self._jobs.share()
            with self._sending:
                if time.perf_counter() - self._began > REPORT_S:
                    self._tell()  # for threads that work on something else already
            for index, thread in self._threads.items():
                sequence_id = self._memory.notes[index]
                calls, spent_s = self._calls[index], _processor_time(thread)
                if not sequence_id or index not in seen or seen[index][0] != calls:
                    seen[index] = (calls, spent_s)
                elif spent_s - seen[index][1] > LIMIT_S - TICK_S:  # it had begun before
                    self._memory.notes[0] = sequence_id
                    os.kill(os.getpid(), signal.SIGKILL)


def _take(row: Row, take: Take) -> Took:
    """Let a sequence take tokens up to its end or a failure."""
    mask, num_taken = row.mask, 0
    assert mask is not None
    for token_id in take.token_ids:
        if mask.failure is not None:
            break
        num_taken += 1
        mask.take(token_id)
        if mask.matcher is not None and mask.matcher.is_error():
            mask.failure = error_of(mask.matcher)
        if mask.is_complete:
            break
    row.region, row.ahead = take.region, take.ahead
    row.num_tokens += num_taken
    return Took(take.sequence_id, num_taken, mask.is_complete, mask.failure)


def _goes_on(took: Took) -> bool:
    return took.failure is None and not took.is_complete


def _processor_time(thread: threading.Thread) -> float:
    """Return the processor time of a thread; where the system does not tell, the time on the clock."""
    assert thread.ident is not None
    if not hasattr(time, "pthread_getcpuclockid"):
        return time.monotonic()
    return time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
