"""Records what streams tell in the journal, before their readers are told: a loop of commits on a thread of its own.

    engine ──put──▶ facts that wait ──commit──▶ journal
                                         └──take──▶ stream ──▶ readers

While one commit runs, further facts wait for the next, so a slow disk makes commits larger, not more. Where it is too
slow, or full, streams go on in memory alone until it can be written again (`is_degraded`).
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from app.contract.errors import Draining, EngineFailed
from app.contract.events import TokenDelta
from app.journal.entries import Head, Told
from app.journal.store import Changes, JournalStore
from app.runtime.clock import monotonic
from app.streaming.background import Background
from app.streaming.kept.journal_counts import JournalCounts, commit_times
from app.streaming.kept.live_stream import Fact, LiveStream, State
from app.streaming.kept.told_entries import told_of, whole
from app.streaming.waker import Waker

# Tokens of a stream that may wait for the disk before it pauses, and before it goes on again.
HIGH_TOKENS, LOW_TOKENS = 192, 64
BLOCKED_S = 5.0  # a commit that takes longer
RETRY_S, MAX_RETRY_S = 1.0, 30.0
AGAIN_S = 0.1  # before a failed commit is tried once more
FORGET_S = 5.0  # between two times that the file is cleaned of what was deleted
CLOSE_S = 1.0
_log = logging.getLogger("quire.journal")


@dataclass(slots=True)
class _Work:
    """The work of the next commit."""

    begun: dict[LiveStream, Head] = field(default_factory=dict)
    facts: dict[LiveStream, list[Fact]] = field(default_factory=dict)
    forgotten: set[int] = field(default_factory=set)
    attempts: dict[int, int] = field(default_factory=dict)
    is_whole: bool = False
    done: asyncio.Event = field(default_factory=asyncio.Event, compare=False)  # written, and told


class Journaling:
    """Implements `Recorder` over a journal's store. Loop only.

    Attributes:
        counts: those that the metrics show.
        commit_s: the seconds of the commits, which they show too.
        is_degraded: whether streams are in memory alone.
        are_taken: set once `go_on` or `drop` was called for all streams of an earlier process; until then the journal
            is not written anew, without them.
    """

    def __init__(self, store: JournalStore) -> None:
        self.counts = JournalCounts()
        self.commit_s = commit_times()
        self.is_degraded = False
        self.are_taken = asyncio.Event()
        if not store.num_stored:
            self.are_taken.set()
        self._store = store
        self._thread = Background("journal", num_threads=1)
        self._next_number = store.next_number
        self._numbers: dict[LiveStream, int] = {}
        self._heads: dict[LiveStream, Head] = {}
        self._work = _Work()
        self._num_waiting: dict[LiveStream, int] = {}  # tokens that wait to be recorded
        self._behind: set[LiveStream] = set()
        # How often streams were begun again that have told nothing since.
        self._attempts: dict[LiveStream, int] = {}
        self._waker = Waker()
        self._writing: _Work | None = None
        self._is_idle = True
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False
        self._next_cleaning: float | None = None
        self._cleaning: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to write. Call it once, on the loop."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    def begin(self, stream: LiveStream, head: Head) -> None:
        """Record a new stream, and all that it tells from now on."""
        self._note(stream, self._next_number, head)
        self._next_number += 1
        self._work.begun[stream] = head
        self._wake()

    def go_on(self, stream: LiveStream, number: int, head: Head, attempts: int = 0) -> None:
        """Record further what a stream of an earlier process tells, which was begun again `attempts` times."""
        self._note(stream, number, head)
        if attempts:
            self._attempts[stream] = attempts

    def note_attempt(self, stream: LiveStream, count: int) -> None:
        """Record how often a stream was begun again without a new token. `flush` before its requests are submitted."""
        self._attempts[stream] = self._work.attempts[self._numbers[stream]] = count
        self._wake()

    def drop(self, number: int) -> None:
        """Delete a stream of an earlier process."""
        self._work.forgotten.add(number)
        self._wake()

    def put(self, stream: LiveStream, fact: Fact) -> None:
        """Record a fact, and then let the stream take it. Never blocks."""
        was_attempted = self._attempts.pop(stream, None) is not None  # now it has a new token, or an end
        if self.is_degraded:  # also when closed: a stream that is in memory alone ends with the process
            stream.take(fact)
            return
        if self._is_closed:
            return
        if was_attempted:
            self._work.attempts[self._numbers[stream]] = 0
        self._work.facts.setdefault(stream, []).append(fact)
        self._num_waiting[stream] = self._num_waiting.get(stream, 0) + _num_tokens(fact)
        self._wake()

    def is_behind(self, stream: LiveStream) -> bool:
        """Return whether too many tokens of a stream wait: from a high mark on, until a low one is reached."""
        num_waiting = self._num_waiting.get(stream, 0)
        if num_waiting >= HIGH_TOKENS:
            self._behind.add(stream)
        elif num_waiting <= LOW_TOKENS:
            self._behind.discard(stream)
        return stream in self._behind

    def is_durable(self, stream: LiveStream) -> bool:
        """Return whether the stream outlives the process."""
        return stream in self._numbers and not self.is_degraded

    def forget(self, stream: LiveStream) -> None:
        """Delete a stream that is not kept any longer. It takes what waits, such as its end, with the next commit."""
        number = self._numbers.pop(stream, None)
        if number is None or self._is_closed:
            return
        del self._heads[stream]
        self._num_waiting.pop(stream, None)
        self._behind.discard(stream)
        self._attempts.pop(stream, None)
        if self._work.begun.pop(stream, None) is None:
            self._work.forgotten.add(number)
        self._wake()

    async def flush(self) -> None:
        """Wait until all that was put so far is recorded, or the journal is degraded or closed. Cancel-safe."""
        work = self._writing if self._work == _Work() else self._work
        if work is not None and not self.is_degraded and not self._is_closed:
            await work.done.wait()

    async def close(self) -> None:
        """Record what waits, for at most a second, and close the file. What is put afterwards is lost on purpose: the
        streams go on in the next process. Idempotent.
        """
        if self._is_closed:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await self.flush()
        self._is_closed = True
        if self._task is not None:
            self._task.cancel()
        for work in (self._writing, self._work):
            if work is not None:
                work.done.set()
        with suppress(TimeoutError, Draining, sqlite3.Error):
            async with asyncio.timeout(CLOSE_S):
                await self._thread.run(self._store.close)
        self._thread.close()

    # --- Its task ------------------------------------------------------------------------------------------------

    def _note(self, stream: LiveStream, number: int, head: Head) -> None:
        self._numbers[stream], self._heads[stream] = number, head
        stream.recorder = self

    def _wake(self) -> None:
        if not self.is_degraded:
            self._is_idle = False
            self._waker.wake()

    async def _run(self) -> None:
        retry_s = RETRY_S
        while True:
            if self.is_degraded:
                await asyncio.sleep(retry_s)
                await self.are_taken.wait()
                retry_s = RETRY_S if await self._rewrite() else min(2 * retry_s, MAX_RETRY_S)
            elif self._is_idle:
                await self._waker.wait()
            else:
                await self._commit()

    async def _commit(self) -> None:
        """Record what waits, and tell it."""
        work, self._work = self._work, _Work()
        self._writing = work
        has_more = False
        try:
            has_more = await self._write(work)
        except Exception as error:  # also one that nobody thought of: readers get their answers
            if not isinstance(error, OSError | sqlite3.Error):
                _log.exception("the journal has failed")
            self._degrade(str(error), work)
        else:
            self._tell_all(work)
        if self._next_cleaning is not None and self._cleaning is None:
            self._cleaning = asyncio.get_running_loop().call_later(FORGET_S, self._wake)
        if self.is_degraded or (self._work == _Work() and not has_more):
            self._is_idle = True
        self._writing = None

    async def _write(self, work: _Work) -> bool:
        """Write work on the thread, once more if that fails; return whether the journal has more to delete."""
        numbers = dict(self._numbers)
        began = monotonic()
        try:
            try:
                found = await self._in_time(work, numbers)
            except sqlite3.Error:
                self.counts.num_errors += 1
                await asyncio.sleep(AGAIN_S)
                found = await self._in_time(work, numbers)
        finally:
            self.commit_s.observe(monotonic() - began)
        return found

    async def _in_time(self, work: _Work, numbers: Mapping[LiveStream, int]) -> bool:
        try:
            async with asyncio.timeout(BLOCKED_S):  # a call that waits is dropped then; one that runs ends by itself
                return await self._thread.run(self._write_now, work, numbers)
        except TimeoutError:
            self.counts.num_errors += 1
            raise OSError(f"a commit takes longer than {BLOCKED_S:g} s") from None

    def _write_now(self, work: _Work, numbers: Mapping[LiveStream, int]) -> bool:
        """Write work. Journal thread: streams do not change what they have told until it is written."""
        begun = {numbers[stream]: head for stream, head in work.begun.items() if stream in numbers}
        if work.is_whole:
            written = {numbers[stream]: whole(stream, Told()) for stream in work.begun if stream in numbers}
            self._store.rewrite(Changes(begun=begun, written=written, attempts=work.attempts))
            return self._clean(has_forgotten=True)
        changes = Changes(begun=begun, forgotten=work.forgotten, attempts=work.attempts)
        for stream, facts in work.facts.items():
            if stream not in numbers:
                continue
            told = told_of(stream, facts)
            if told.state == State.RUNNING:
                changes.told[numbers[stream]] = told
            else:
                changes.written[numbers[stream]] = whole(stream, told)
        if holders := self._store.holders(work.forgotten):
            streams = {number: stream for stream, number in numbers.items()}
            for number in holders:
                if number in streams and number not in changes.written:
                    changes.written[number] = whole(streams[number], changes.told.pop(number, Told()))
                    if not work.forgotten:
                        break  # the next one with the next commit: all at once would hold this one up
        self._store.commit(changes)
        return self._clean(bool(work.forgotten))

    def _clean(self, has_forgotten: bool) -> bool:
        """Clean the file of what was deleted, not too often; return whether there is more to delete. Journal thread."""
        now = monotonic()
        self.counts.num_bytes = self._store.num_bytes
        if has_forgotten and self._next_cleaning is None:
            self._next_cleaning = now + FORGET_S
        if self._store.has_unneeded:
            return True
        if self._next_cleaning is not None and now >= self._next_cleaning:
            self._next_cleaning = self._cleaning = None
            try:
                self._store.truncate()
            except sqlite3.Error:  # what was committed stays so: to commit it again would tell it twice
                self._next_cleaning = now + FORGET_S
        return False

    def _tell_all(self, work: _Work) -> None:
        """Let streams take their facts; one that cannot fails alone, and the others go on."""
        for stream, facts in work.facts.items():
            if stream in self._num_waiting:
                self._num_waiting[stream] -= sum(map(_num_tokens, facts))
            try:
                for fact in facts:
                    stream.take(fact)
                stream.judge()
            except Exception:
                _log.exception("a stream has failed")
                with suppress(Exception):
                    stream.fail(EngineFailed("Internal error on this stream; see the server log.").info())
        work.done.set()

    # --- A disk that cannot be written ---------------------------------------------------------------------------

    def _degrade(self, why: str, failed: _Work) -> None:
        """Let streams go on in memory alone: they take the facts of the failed commit, and then those behind it."""
        self.is_degraded = True
        self.counts.state = 1
        _log.error("The journal cannot be written (%s): streams are in memory alone until it can.", why)
        self._num_waiting.clear()
        self._behind.clear()
        later, self._work = self._work, _Work()
        self._tell_all(failed)
        self._tell_all(later)

    async def _rewrite(self) -> bool:
        """Write all streams anew; return whether that is possible again."""
        self.is_degraded = False  # what comes meanwhile waits, so that streams do not change while they are written
        attempts = {self._numbers[stream]: count for stream, count in self._attempts.items()}
        self._work = _Work(begun=dict(self._heads), attempts=attempts, is_whole=True)
        await self._commit()
        if not self.is_degraded:
            self.counts.state = 0
            _log.warning("The journal can be written again: streams outlive the process.")
        return not self.is_degraded


def _num_tokens(fact: Fact) -> int:
    return len(fact[1].token_ids) if isinstance(fact, tuple) and isinstance(fact[1], TokenDelta) else 0
