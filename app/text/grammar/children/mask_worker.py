"""The process that owns the matchers of all sequences with grammars, and finds the tokens that each may have next.

A grammar that compiles at once can still take seconds and gigabytes for one mask. So masks are made here, where a row
that costs too much ends this process and not the server: the first note in the shared memory names the sequence. The
server starts another process, which begins with the tokens that the other sequences have, and finds the same masks.

    main thread     reads turns, lets sequences take tokens, answers at once
    mask threads    begin sequences, and make masks: those of the accounts first that have cost least
    compile thread  compiles grammars, which counts for no sequence
    watching thread ends the process when a thread works on one sequence for more than LIMIT_S of its processor time
"""

from __future__ import annotations

import os
import queue
import select
import signal
import socket
import sys
import threading
import time
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from app.contract.errors import InvalidValue
from app.contract.grammar import Grammar
from app.runtime.process_limits import limit_memory
from app.text.grammar.children.mask_memory import NUM_NOTES, MaskMemory
from app.text.grammar.children.mask_messages import (
    Compile,
    Compiled,
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
from app.text.grammar.compile import compile_grammar, error_of
from app.text.grammar.grammar_sizes import MAX_BYTES, compiled_bytes
from app.text.grammar.row_mask import Phase, Place, RowMask
from app.text.grammar.vocabulary import GrammarVocabulary

if TYPE_CHECKING:
    from llguidance import LLMatcher

LIMIT_S = 0.09
"""The most processor time of a thread for one sequence in a step."""
MEMORY_BYTES = 512 * 2**20
THREAD_BYTES = 72 * 2**20
"""Address space that the system sets aside for each thread."""
SLOW_S = 0.001
TICK_S = 0.01
STUCK_S = 0.5
"""Processor time after which the system ends the process, if the watching thread cannot: a call may keep the lock."""
REPORT_S = 0.002
"""Masks are told together where they are all found within this time."""
READ_BYTES = 64 * 2**10
MAX_ACCOUNTS, MAX_SPENT_S, FORGOTTEN_S = 1024, 60.0, 0.01
MAIN, COMPILER = 1, 2  # notes; those of the mask threads follow


class _Lexer:
    """What all sequences with one grammar share, as the library's copies do: only one thread may use it at a time.

    Any other one would wait inside of the library, and keep the interpreter's lock meanwhile.
    """

    __slots__ = ("is_busy", "jobs")

    def __init__(self) -> None:
        self.is_busy = False
        self.jobs: deque[tuple[_Row, Callable[[_Row], None]]] = deque()


class _Row:
    """One sequence: its constraint, where its mask goes, and how many jobs of it are not done."""

    __slots__ = ("account", "is_ended", "lexer", "mask", "num_jobs", "num_tokens", "region", "start")

    def __init__(self, start: Start, lexer: _Lexer) -> None:
        self.start = start
        self.lexer = lexer
        self.region = start.region
        self.account = start.account
        self.num_tokens = len(start.token_ids)
        self.mask: RowMask | None = None  # until it has begun
        self.num_jobs = 1  # its beginning
        self.is_ended = False


class _Jobs:
    """Work of mask threads: one job of a grammar at a time, first for the accounts that have cost least. Any thread."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.num_open = 0  # jobs that wait or run
        self._waiting: dict[_Lexer, None] = {}  # those that have jobs
        self._spent_s: defaultdict[str, float] = defaultdict(float)

    def put(self, rows: Sequence[_Row], work: Callable[[_Row], None], *, is_first: bool = False) -> None:
        """Add the same job for some sequences; with `is_first` it was counted when these were made."""
        with self.changed:
            for row in rows:
                row.num_jobs += not is_first
                row.lexer.jobs.append((row, work))
                self._waiting[row.lexer] = None
            self.num_open += len(rows)
            self.changed.notify_all()

    def take(self) -> tuple[_Row, Callable[[_Row], None]]:
        """Return the next job. Blocks."""
        with self.changed:
            while (lexer := self._next()) is None:
                self.changed.wait()
            lexer.is_busy = True
            job = lexer.jobs.popleft()
            if not lexer.jobs:
                del self._waiting[lexer]
            return job

    def end(self, row: _Row, seconds: float) -> bool:
        """Note that a job is done; return whether no other one can be begun."""
        with self.changed:
            spent = self._spent_s
            spent[row.account] += seconds
            if len(spent) > MAX_ACCOUNTS or spent[row.account] > MAX_SPENT_S:  # what was long ago counts less
                halves = {account: value / 2 for account, value in spent.items() if value > FORGOTTEN_S}
                spent.clear()
                spent.update(halves)
            row.lexer.is_busy = False
            row.num_jobs -= 1
            self.num_open -= 1
            self.changed.notify_all()
            return self._next() is None

    @contextmanager
    def using(self, row: _Row) -> Iterator[None]:
        """Wait until all jobs of a sequence are done, and keep its grammar from all others within the block."""
        with self.changed:
            while row.num_jobs or row.lexer.is_busy:
                self.changed.wait()
            row.lexer.is_busy = True
        try:
            yield
        finally:
            with self.changed:
                row.lexer.is_busy = False
                if row.lexer.jobs:
                    self.changed.notify_all()

    def _next(self) -> _Lexer | None:
        """Return what the next job is for."""
        free = [lexer for lexer in self._waiting if not lexer.is_busy]
        return min(free, key=lambda lexer: self._spent_s[lexer.jobs[0][0].account], default=None)


class MaskWorker:
    """Runs the process. `steps` is the engine's socket, `compiles` that of the server's loop."""

    def __init__(
        self, steps: socket.socket, compiles: socket.socket, memory: int, vocabulary: GrammarVocabulary
    ) -> None:
        setup = read_message(steps, Setup)
        if setup is None:
            os._exit(0)
        self._setup = setup
        self._steps, self._compiles, self._vocabulary = steps, compiles, vocabulary
        self._memory = MaskMemory(memory, setup.num_words, setup.num_regions)
        self._mask_bytes = 4 * setup.num_words
        unending = bytearray(b"\xff" * self._mask_bytes)
        for token_id in setup.eos_token_ids:
            unending[token_id >> 3] &= ~(1 << (token_id & 7)) & 0xFF
        self._unending, self._nothing = bytes(unending), bytes(self._mask_bytes)
        self._rows: dict[int, _Row] = {}
        self._jobs = _Jobs()
        self._ready: list[Ready] = []
        self._drafted: list[Drafted] = []
        self._began = 0.0  # when the oldest result that is not told was found
        self._sending = threading.Lock()
        self._prototypes: OrderedDict[Grammar, LLMatcher] = OrderedDict()
        self._lexers: dict[Grammar, _Lexer] = {}
        self._num_bytes = 0
        self._to_compile: queue.SimpleQueue[tuple[Grammar, _Row | None]] = queue.SimpleQueue()
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
        turns, compiles = Messages(Turn), Messages(Compile)
        poll = select.poll()
        poll.register(self._steps, select.POLLIN)
        poll.register(self._compiles, select.POLLIN)
        while True:
            for descriptor, _ in poll.poll():
                self._arm()
                if descriptor == self._steps.fileno():
                    data = self._steps.recv(READ_BYTES)
                    if not data:
                        return
                    for turn in turns.feed(data):
                        self._take_turn(turn)
                else:
                    data = self._compiles.recv(READ_BYTES)
                    if not data:
                        poll.unregister(descriptor)
                    for each in compiles.feed(data):
                        self._to_compile.put((each.grammar, None))

    # --- Main thread ----------------------------------------------------------------------------------------------

    def _take_turn(self, turn: Turn) -> None:
        for sequence_id in turn.ends:
            if (row := self._rows.pop(sequence_id, None)) is not None:
                row.is_ended = True
        for start in turn.starts:
            grammar = start.constraint.grammar
            assert grammar is not None
            row = self._rows[start.sequence_id] = _Row(start, self._lexers.setdefault(grammar, _Lexer()))
            if (prototype := self._prototypes.get(grammar)) is not None:
                self._jobs.put([row], partial(self._begin, prototype), is_first=True)
            else:
                self._to_compile.put((grammar, row))
        if turn.takes:
            self._take_all(turn.takes)
        for draft in turn.drafts:
            row = self._rows[draft.sequence_id]
            with self._jobs.using(row):  # so it has begun
                self._jobs.put([row], partial(self._draft, draft))

    def _take_all(self, takes: Sequence[Take]) -> None:
        """Let sequences take tokens, and say what became of that; then find their next masks."""
        took, rows = [], []
        for take in takes:
            row = self._rows[take.sequence_id]
            with self._jobs.using(row):
                assert row.mask is not None
                self._note(MAIN, take.sequence_id)
                num_taken = _take(row.mask, take.token_ids)
                is_complete, failure = row.mask.is_complete, row.mask.failure
                self._note(MAIN, 0)
            row.region = take.region
            row.num_tokens += num_taken
            took.append(Took(take.sequence_id, num_taken, is_complete, failure))
            if failure is None and not is_complete:
                rows.append(row)
        self._send(Reply(took=tuple(took)))
        if rows:
            self._jobs.put(rows, self._find)

    # --- Mask threads ---------------------------------------------------------------------------------------------

    def _work(self, index: int) -> None:
        while True:
            row, work = self._jobs.take()
            began = time.perf_counter()
            self._note(index, row.start.sequence_id)
            work(row)
            self._note(index, 0)
            now = time.perf_counter()
            has_no_more = self._jobs.end(row, now - began)
            with self._sending:
                if has_no_more or now - self._began > REPORT_S:
                    self._tell()

    def _begin(self, prototype: LLMatcher | str, row: _Row) -> None:
        """Begin a sequence with the tokens that it has; it fails where a text says why there is no `prototype`."""
        constraint, sequence_id = row.start.constraint, row.start.sequence_id
        if isinstance(prototype, str):
            row.mask = RowMask(constraint, None, ())
            row.mask.failure = prototype
            self._find(row)
            return
        row.mask = RowMask(constraint, prototype.deep_copy(), ())
        index = self._index()
        for token_id in row.start.token_ids:
            if row.is_ended:
                break
            self._note(index, sequence_id)  # each token may cost what a step may
            row.mask.take(token_id)
        self._note(index, sequence_id)
        self._find(row)

    def _find(self, row: _Row) -> None:
        """Make the mask of a sequence, and ask for the tokens that must come next."""
        mask = row.mask
        assert mask is not None
        began = time.perf_counter()
        forced: tuple[int, ...] = ()
        if mask.failure is None and not row.is_ended:
            self._write(row, row.region, mask.place)
            if mask.failure is None:
                forced = tuple(mask.forced())
        is_slow = time.perf_counter() - began > SLOW_S
        self._add(Ready(row.start.sequence_id, row.num_tokens, is_slow, mask.failure, forced))

    def _draft(self, draft: Draft, row: _Row) -> None:
        """Make the masks behind draft tokens, up to the first that the grammar forbids."""
        mask = row.mask
        assert mask is not None
        place, matcher, num_consumed, count = mask.place, mask.matcher, 0, 0
        if matcher is None:  # it has failed
            self._add(Drafted(draft.sequence_id, 0))
            return
        for token_id in draft.token_ids:
            before, place = place, mask.gate.after(place, token_id)
            if before.phase is not Phase.THINKING and place.phase is Phase.ANSWERING:
                if not matcher.validate_tokens([token_id]) or not matcher.consume_token(token_id):
                    break
                num_consumed += 1
            self._write(row, draft.region + count, place)
            count += 1
        if num_consumed:
            matcher.rollback(num_consumed)
        self._add(Drafted(draft.sequence_id, count))

    def _write(self, row: _Row, region: int, place: Place) -> None:
        """Write the mask at one place of a sequence, unless it has no region; note a failure of its grammar."""
        mask, memory = row.mask, self._memory
        if region < 0:
            return
        assert mask is not None and mask.matcher is not None
        if place.phase is Phase.THINKING:
            if mask.gate.must_close(place):
                assert mask.gate.marks is not None
                memory.write(region, self._nothing)
                memory.allow(region, mask.gate.marks.close_id)
            else:
                memory.write(region, self._unending)
            return
        mask.matcher.unsafe_compute_mask_ptr(memory.address(region), self._mask_bytes)
        if mask.matcher.is_error():
            mask.failure = error_of(mask.matcher)
        elif place.phase is Phase.OUTSIDE and mask.gate.marks is not None:
            memory.allow(region, mask.gate.marks.open_id)

    # --- Compile thread -------------------------------------------------------------------------------------------

    def _compile_all(self, index: int) -> None:
        while True:
            grammar, row = self._to_compile.get()
            prototype: LLMatcher | str | None = self._prototypes.get(grammar)
            if prototype is None:
                self._memory.notes[index] = 0 if row is None else row.start.sequence_id
                self._is_compiling = True
                try:
                    prototype = compile_grammar(grammar, self._vocabulary)
                    self._keep(grammar, prototype)
                except InvalidValue as error:
                    prototype = error.message
                self._is_compiling = False
                self._memory.notes[index] = 0
            if row is None:
                self._compiles.sendall(encode(Compiled(prototype if isinstance(prototype, str) else None)))
            else:
                self._jobs.put([row], partial(self._begin, prototype), is_first=True)

    def _keep(self, grammar: Grammar, prototype: LLMatcher) -> None:
        """Keep a compiled grammar for the sequences that begin with it; drop those that were compiled longest ago."""
        self._prototypes[grammar] = prototype
        self._num_bytes += compiled_bytes(grammar)
        while self._num_bytes > MAX_BYTES and len(self._prototypes) > 1:
            oldest, _ = self._prototypes.popitem(last=False)
            self._lexers.pop(oldest, None)  # a sequence that has begun keeps its own
            self._num_bytes -= compiled_bytes(oldest)

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

    def _tell(self) -> None:
        """Say which masks are there. Under `_sending`."""
        if self._ready or self._drafted:
            self._steps.sendall(encode(Reply(ready=tuple(self._ready), drafted=tuple(self._drafted))))
            self._ready, self._drafted = [], []

    def _send(self, reply: Reply) -> None:
        with self._sending:
            self._steps.sendall(encode(reply))

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
                with self._jobs.changed:
                    while not self._is_working:
                        self._jobs.changed.wait(0.1)
            self._arm()
            time.sleep(TICK_S)
            with self._sending:
                if time.perf_counter() - self._began > REPORT_S:
                    self._tell()  # for threads that work on something else already
            for index, thread in self._threads.items():
                sequence_id = self._memory.notes[index]
                calls, spent_s = self._calls[index], _processor_time(thread)
                if not sequence_id or index not in seen or seen[index][0] != calls:
                    seen[index] = (calls, spent_s)
                elif spent_s - seen[index][1] > LIMIT_S:
                    self._memory.notes[0] = sequence_id
                    os.kill(os.getpid(), signal.SIGKILL)


def _take(mask: RowMask, token_ids: Sequence[int]) -> int:
    """Let a sequence take tokens up to its end or a failure; return how many it has taken."""
    for count, token_id in enumerate(token_ids, 1):
        mask.take(token_id)
        if mask.matcher is not None and mask.matcher.is_error():
            mask.failure = error_of(mask.matcher)
        if mask.failure is not None or mask.is_complete:
            return count
    return len(token_ids)


def _processor_time(thread: threading.Thread) -> float:
    """Return the processor time of a thread; where the system does not tell, the time on the clock."""
    assert thread.ident is not None
    if not hasattr(time, "pthread_getcpuclockid"):
        return time.monotonic()
    return time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
