"""The work of the process that finds masks, shared among its threads: what is done next, and who must wait."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence

from app.contract.grammar import Grammar
from app.text.grammar.children.account_turns import MAX_ACCOUNTS, AccountTurns
from app.text.grammar.children.mask_messages import Start
from app.text.grammar.compiled import CompiledGrammar
from app.text.grammar.row_mask import RowMask

SHARE_S = 0.001
"""Work that is expected to take less than this is left to one thread: waking another one would take as long."""
UNKNOWN_S = 0.001
QUICK_S = 0.0005
"""Work that is expected to take less than this is done at once, by the thread that would wake another one."""
LONG_S = 0.1
"""What takes longer to compile has a thread of its own, so that nothing else waits for it."""
SURPRISE_S, SURPRISES_S = 0.01, 60.0
"""An account with work that took that long has nothing done at once for so many seconds: others would wait for it."""


class Lexer:
    """What sequences with one grammar share, as the library's copies do: only one thread may use it at a time.

    Any other one would wait inside of the library, and keep the interpreter's lock meanwhile. A spent one is replaced:
    its sequences begin again with another one (see text/grammar/compiled), which `is_again` says before it is compiled.
    """

    __slots__ = ("compiled", "is_again", "is_busy", "is_long", "jobs", "num_again")

    def __init__(self, *, is_again: bool = False) -> None:
        self.compiled: CompiledGrammar | None = None
        self.is_again = is_again
        self.num_again = 0  # sequences that were to begin again with it
        self.is_long: bool | None = None  # to compile; None until it is to be
        self.is_busy = False
        self.jobs: deque[tuple[Row, Job]] = deque()

    @property
    def is_spent(self) -> bool:
        """Whether no sequence can go on with it."""
        return self.compiled is not None and self.compiled.is_spent


class Row:
    """One sequence: its constraint, where its mask goes, what its last job took, and those that are not done.

    It begins by taking its tokens and doing `job`; the jobs in `behind` follow. So it does, too, when it begins again.
    """

    __slots__ = (
        "account", "ahead", "behind", "cost_s", "is_begun", "is_ended", "is_new", "is_stale", "job",
        "lexer", "mask", "num_jobs", "num_taken", "num_tokens", "region", "start",
    )  # fmt: skip

    def __init__(self, start: Start, lexer: Lexer, job: Job) -> None:
        self.start = start
        self.lexer = lexer
        self.job = job
        self.region = start.region
        self.ahead = -1
        self.account = start.account
        self.num_tokens = len(start.token_ids)
        self.num_taken = 0  # of the tokens that it is to take now
        self.mask: RowMask | None = None  # until it has begun
        self.num_jobs = 1  # its beginning
        self.is_begun = False
        self.is_new = False  # while it begins: it has done nothing else with its lexer
        self.is_stale = False  # it must begin again before it does anything else
        self.behind: list[Job] = []
        self.cost_s = UNKNOWN_S
        self.is_ended = False

    @property
    def grammar(self) -> Grammar:
        """What its tokens must satisfy."""
        grammar = self.start.constraint.grammar
        assert grammar is not None
        return grammar

    @property
    def token_ids(self) -> Sequence[int]:
        """The tokens that it has, with those that it was just to take."""
        return self.start.token_ids if self.mask is None else self.mask.token_ids


Job = Callable[["Row"], "Job | None"]
"""A job returns None when it is done, or what is left to do when its sequence has begun again."""


class Jobs:
    """Work of mask threads: one job of a grammar at a time, first for the accounts that have cost least. Any thread.

    The sequences whose grammars must be compiled first are in two queues of their own, with the same rule: those that
    take long to compile, and the others.

    Attributes:
        num_open: how many jobs wait or run, and sequences whose grammars are held.
        begun: set while there are such, or a grammar is compiled; for the thread that watches.
    """

    def __init__(self) -> None:
        self.num_open = 0
        self.begun = threading.Event()
        lock = threading.Lock()
        self._work = threading.Condition(lock)  # of mask threads
        self._compilers = {is_long: threading.Condition(lock) for is_long in (False, True)}
        self._uncompiled: dict[bool, list[Row]] = {False: [], True: []}
        self._num_asleep = 0  # mask threads without work
        self._waiting: dict[Lexer, None] = {}  # those that have jobs
        self._turns = AccountTurns()
        self._surprised_at: dict[str, float] = {}  # accounts, by the time of their last long work

    def begin(self, row: Row, job: Job) -> None:
        """Add the first job of a sequence."""
        with self._work:
            self._add(row, job)
            self._work.notify()

    def put(self, rows: Sequence[Row], job: Job) -> None:
        """Add the same job for some sequences, for each behind those that it has."""
        with self._work:
            for row in rows:
                row.num_jobs += 1
                if row.is_begun:
                    self._add(row, job)
                else:
                    row.behind.append(job)
            self._work.notify(1 + int(sum(row.cost_s for row in rows) / SHARE_S))

    def compile_for(self, row: Row) -> None:
        """Let the grammar of a sequence be compiled before it begins."""
        with self._work:
            self._compile_for(row)

    def _compile_for(self, row: Row) -> None:
        lexer = row.lexer
        if lexer.is_long is None:  # all its sequences are in the same queue, so that it is compiled once
            lexer.is_long = row.start.compile_s > LONG_S
        self._uncompiled[lexer.is_long].append(row)
        self._compilers[lexer.is_long].notify()

    def next_to_compile(self, *, is_long: bool) -> Row:
        """Return the next sequence whose grammar is to be compiled, of the account that has cost least. Blocks."""
        with self._work:
            waiting = self._uncompiled[is_long]
            while not waiting:
                self._compilers[is_long].wait()
            row = self._turns.next(waiting, lambda row: row.account)
            waiting.remove(row)
            self.begun.set()
            return row

    def end_compiling(self, row: Row, seconds: float) -> None:
        """Note what it took to compile the grammar of a sequence."""
        with self._work:
            self._spend(row.account, seconds)
            if not self.num_open:
                self.begun.clear()

    def is_quick(self, rows: Sequence[Row]) -> bool:
        """Whether a mask for each of some sequences is expected to take next to no time."""
        with self._work:
            if sum(row.cost_s for row in rows) >= QUICK_S:
                return False
            now, surprised_at = time.monotonic(), self._surprised_at
            return all(now - surprised_at.get(row.account, -SURPRISES_S) >= SURPRISES_S for row in rows)

    def spend(self, row: Row, seconds: float) -> None:
        """Note what work on a sequence took that was no job."""
        with self._work:
            row.cost_s = seconds
            self._spend(row.account, seconds)

    def _add(self, row: Row, job: Job) -> None:
        row.lexer.jobs.append((row, job))
        self._waiting[row.lexer] = None
        self.num_open += 1
        self.begun.set()

    def share(self) -> None:
        """Wake a thread that has no work, if there is some: what was expected to be quick may not be."""
        with self._work:
            if self._num_asleep and self._next() is not None:
                self._work.notify()

    def take(self) -> tuple[Row, Job]:
        """Return the next job. Blocks."""
        with self._work:
            while (lexer := self._next()) is None:
                self._num_asleep += 1
                self._work.wait()
                self._num_asleep -= 1
            lexer.is_busy = True
            job = lexer.jobs.popleft()
            del self._waiting[lexer]
            if lexer.jobs:
                self._waiting[lexer] = None  # behind the others
            return job

    def end(self, row: Row, seconds: float) -> bool:
        """Note that a job is done; return whether no other one can be begun."""
        with self._work:
            row.num_jobs -= 1
            self._stop(row, seconds)
            if not row.is_begun:
                row.is_begun = True
                for job in row.behind:
                    self._add(row, job)
                row.behind.clear()
            return self._rest()

    def end_to_begin_again(self, row: Row, job: Job, lexer: Lexer, seconds: float) -> bool:
        """Note that a job has ended because its sequence must begin again; return as `end` does."""
        with self._work:
            self._stop(row, seconds)
            self._begin_again(row, job, lexer)
            return self._rest()

    def begin_again(self, row: Row, job: Job, lexer: Lexer) -> None:
        """Let a sequence without jobs begin again with another lexer, and do a job then."""
        with self._work:
            row.num_jobs += 1
            self._begin_again(row, job, lexer)

    def _begin_again(self, row: Row, job: Job, lexer: Lexer) -> None:
        """Let what waits for a sequence follow its second beginning."""
        others = deque(each for each in row.lexer.jobs if each[0] is not row)
        moved = [job for each, job in row.lexer.jobs if each is row]
        self.num_open -= len(moved)
        row.lexer.jobs = others
        if not others:
            self._waiting.pop(row.lexer, None)
        row.lexer, row.job, row.is_begun = lexer, job, False
        row.behind[:0] = moved
        self._compile_for(row)

    def _stop(self, row: Row, seconds: float) -> None:
        row.cost_s = seconds
        row.lexer.is_busy = False
        self._spend(row.account, seconds)
        self.num_open -= 1

    def _rest(self) -> bool:
        if not self.num_open:
            self.begun.clear()
        return self._next() is None

    def hold(self, rows: Sequence[Row]) -> set[Row]:
        """Keep the grammars of those sequences from all others until `release` that nobody works on; return these."""
        with self._work:
            held = {row for row in rows if not row.num_jobs and not row.lexer.is_busy}
            for row in held:
                row.lexer.is_busy = True
            self.num_open += len(held)
            if held:
                self.begun.set()
            return held

    def release(self, rows: Collection[Row]) -> None:
        """Let others work on the grammars of sequences again."""
        with self._work:
            for row in rows:
                row.lexer.is_busy = False
            self.num_open -= len(rows)
            if not self.num_open:
                self.begun.clear()
            if self._num_asleep and self._next() is not None:
                self._work.notify()

    def _next(self) -> Lexer | None:
        """Return what the next job is for."""
        free = [lexer for lexer in self._waiting if not lexer.is_busy]
        if len(free) < 2:
            return free[0] if free else None
        return self._turns.next(free, lambda lexer: lexer.jobs[0][0].account)

    def _spend(self, account: str, seconds: float) -> None:
        self._turns.spend(account, seconds)
        if seconds > SURPRISE_S:
            self._surprised_at[account] = time.monotonic()
            if len(self._surprised_at) > MAX_ACCOUNTS:
                del self._surprised_at[min(self._surprised_at, key=self._surprised_at.__getitem__)]
