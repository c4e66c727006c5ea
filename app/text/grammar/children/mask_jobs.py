"""The work of the process that finds masks, shared among its threads: what is done next, and who must wait."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Collection, Sequence

from app.text.grammar.children.account_turns import MAX_ACCOUNTS, AccountTurns
from app.text.grammar.children.shared_lexer import SharedLexer
from app.text.grammar.children.trial import SHORT_S
from app.text.grammar.children.worker_row import Job, Row
from app.text.grammar.compiled import CompiledGrammar

SHARE_S = 0.001
"""Work that is expected to take less than this is left to one thread: waking another one would take as long."""
QUICK_S = 0.0005
"""Work that is expected to take less than this is done at once, by the thread that would wake another one."""
NOT_NEEDED = "It has ended"
SURPRISE_S, SURPRISES_S = 0.01, 60.0
"""An account with work that took that long has nothing done at once for so many seconds: others would wait for it."""


class Jobs:
    """Work of mask threads: one job of a grammar at a time, first for the accounts that have cost least. Any thread.

    A sequence begins with the job `begin`. Grammars that must be compiled before are in two queues of their own, with
    the same rule: those that need more than a short trial to compile, so that nothing else waits for them, and others.

    Attributes:
        num_open: how many jobs wait or run, and sequences whose grammars are held.
        begun: set while there are such; for the thread that watches.
    """

    def __init__(self, begin: Job) -> None:
        self.num_open = 0
        self.begun = threading.Event()
        self._begin_job = begin
        lock = threading.Lock()
        self._work = threading.Condition(lock)  # of mask threads
        self._compilers = {is_long: threading.Condition(lock) for is_long in (False, True)}
        self._uncompiled: dict[bool, list[SharedLexer]] = {False: [], True: []}
        self._unneeded = SharedLexer(refusal=NOT_NEEDED)
        self._num_asleep = 0  # mask threads without work
        self._waiting: dict[SharedLexer, None] = {}  # those that have jobs which can be done
        self._turns = AccountTurns()
        self._surprised_at: dict[str, float] = {}  # accounts, by the time of their last long work

    def begin(self, row: Row) -> None:
        """Let a sequence begin, after its grammar is compiled."""
        with self._work:
            row.num_jobs += 1
            self._begin(row)

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

    def next_to_compile(self, *, is_long: bool) -> tuple[SharedLexer, Row]:
        """Return the next grammar to compile, with the sequence whose account has the turn. Blocks."""
        with self._work:
            queue = self._uncompiled[is_long]
            while not (waiting := self._waiting_for(queue)):
                self._compilers[is_long].wait()
            lexer, row = self._turns.next(waiting, lambda pair: pair[1].account)
            queue.remove(lexer)
            return lexer, row

    def end_compiling(self, lexer: SharedLexer, compiled: CompiledGrammar | str, row: Row, seconds: float) -> None:
        """Let all sequences begin that have waited for a grammar, or fail with the text that says why there is none."""
        with self._work:
            if isinstance(compiled, str):
                lexer.refusal = compiled
            else:
                lexer.compiled = compiled
            self._waiting[lexer] = None
            self._spend(row.account, seconds)
            self._work.notify()

    def is_quick(self, rows: Sequence[Row]) -> bool:
        """Return whether a mask for each of some sequences is expected to take next to no time."""
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

    def _begin(self, row: Row) -> None:
        lexer = row.lexer
        self._add(row, self._begin_job)
        if lexer.is_settled:
            self._work.notify()
        elif not lexer.is_queued:
            lexer.is_queued, is_long = True, row.start.compile_s > SHORT_S
            self._uncompiled[is_long].append(lexer)
            self._compilers[is_long].notify()

    def _waiting_for(self, queue: list[SharedLexer]) -> list[tuple[SharedLexer, Row]]:
        """Return the sequences that wait for the grammars of a queue, with these.

        Grammars whose sequences have all ended are taken from it, and these say so. Sequences end without the lock.
        """
        found: list[tuple[SharedLexer, Row]] = []
        for lexer in list(queue):
            rows = [row for row, _ in lexer.jobs if not row.is_ended]
            found += [(lexer, row) for row in rows]
            if not rows:
                queue.remove(lexer)
                self._give_up(lexer)
        return found

    def _give_up(self, lexer: SharedLexer) -> None:
        lexer.is_queued = False
        while lexer.jobs:
            row, job = lexer.jobs.popleft()
            row.lexer = self._unneeded
            self.num_open -= 1
            self._add(row, job)
        self._work.notify()

    def _add(self, row: Row, job: Job) -> None:
        lexer = row.lexer
        lexer.jobs.append((row, job))
        if lexer.is_settled:
            self._waiting[lexer] = None
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

    def end_to_begin_again(self, row: Row, job: Job, lexer: SharedLexer, seconds: float) -> bool:
        """Note that a job has ended because its sequence must begin again; return as `end` does."""
        with self._work:
            self._stop(row, seconds)
            self._begin_again(row, job, lexer)
            return self._rest()

    def begin_again(self, row: Row, job: Job, lexer: SharedLexer) -> None:
        """Let a sequence without jobs begin again with another lexer, and do a job then."""
        with self._work:
            row.num_jobs += 1
            self._begin_again(row, job, lexer)

    def _begin_again(self, row: Row, job: Job, lexer: SharedLexer) -> None:
        """Let what waits for a sequence follow its second beginning."""
        others = deque(each for each in row.lexer.jobs if each[0] is not row)
        moved = [job for each, job in row.lexer.jobs if each is row]
        self.num_open -= len(moved)
        row.lexer.jobs = others
        if not others:
            self._waiting.pop(row.lexer, None)
        row.lexer, row.job, row.is_begun = lexer, job, False
        row.behind[:0] = moved
        self._begin(row)

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

    def _next(self) -> SharedLexer | None:
        """Return the lexer whose job is next."""
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
