"""Records what streams tell in the journal, before their readers are told: a loop of commits on a thread of its own.

    engine ──add──▶ work that waits ──commit──▶ journal
                                         └──take──▶ stream ──▶ readers

While one commit runs, further work waits for the next, so a slow disk makes commits larger, not more. Where it is too
slow, or full, streams go on in memory alone until it can be written again (`is_degraded`).
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from app.contract.errors import Draining, EngineFailed
from app.contract.events import TokenDelta
from app.journal.entries import Head
from app.journal.store import JournalStore
from app.runtime.clock import monotonic
from app.streaming.kept.call_thread import CallThread
from app.streaming.kept.journal_counts import JournalCounts, commit_times
from app.streaming.kept.journal_work import JournalWork, Recorded
from app.streaming.kept.live_stream import Ending, LiveStream
from app.streaming.waker import Waker

BLOCKED_S = 5.0  # a commit that takes longer
RETRY_S, MAX_RETRY_S = 1.0, 30.0
AGAIN_S = 0.1  # before a failed commit is tried once more
FORGET_S = 5.0  # between two times that the file is cleaned of what was deleted
CLOSE_S = 1.0
_FORGOTTEN = 0  # which is no stream's number
_log = logging.getLogger("quire.journal")


class Journaling:
    """Implements `Recorder` over a journal's store. Loop only.

    Attributes:
        commit_s: the seconds of the commits, which they show too.
        is_degraded: whether streams are in memory alone.
        are_taken: set once `go_on` or `drop` was called for all streams of an earlier process; until then the journal
            is not written anew, without them.
    """

    def __init__(self, store: JournalStore) -> None:
        self._counts = JournalCounts()
        self.commit_s = commit_times()
        self.is_degraded = False
        self.are_taken = asyncio.Event()
        if not store.num_stored:
            self.are_taken.set()
        self._store = store
        self._thread = CallThread("journal")
        self._next_number = store.next_number
        self._numbers: dict[LiveStream, int] = {}
        self._recorded: dict[int, Recorded] = {}  # by number
        self._work = JournalWork()
        # How often streams were begun again that have told nothing since.
        self._attempts: dict[LiveStream, int] = {}
        self._waker = Waker()
        self._writing: JournalWork | None = None
        self._is_idle = True
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False
        self._next_cleaning: float | None = None
        self._cleaning: asyncio.TimerHandle | None = None

    @property
    def counts(self) -> JournalCounts:
        """The counts that the metrics show; looks at the size of the file."""
        self._counts.num_bytes = self._store.num_bytes
        return self._counts

    def start(self) -> None:
        """Begin to write. Call it once, on the loop."""
        loop = asyncio.get_running_loop()
        self._task = loop.create_task(self._run())
        # A process that was killed may have left what it had deleted.
        self._next_cleaning = monotonic()
        self._cleaning = loop.call_later(FORGET_S, self._wake_to_clean)

    def begin(self, stream: LiveStream, head: Head) -> None:
        """Record a new stream, and all that it tells from now on."""
        self._note(stream, self._next_number, head)
        self._next_number += 1
        self._work.begun[self._numbers[stream]] = Recorded(stream, head)
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

    def add(self, stream: LiveStream, choice: int, delta: TokenDelta) -> None:
        """Record tokens, and then let the stream take them. Never blocks."""
        if self._attempts:
            self._end_attempts(stream)
        if self.is_degraded:  # also when closed: a stream that is in memory alone ends with the process
            stream.take(choice, delta)
        elif not self._is_closed:
            self._work.deltas.append((self._numbers.get(stream) or self._note_forgotten(), stream, choice, delta))
            if self._is_idle:
                self._wake()

    def add_ending(self, stream: LiveStream, ending: Ending) -> None:
        """Record an ending behind the tokens, and then let the stream take it. Never blocks."""
        self._end_attempts(stream)
        if self.is_degraded:
            stream.take_ending(ending)
        elif not self._is_closed:
            self._work.endings.append((self._numbers.get(stream) or self._note_forgotten(), stream, ending))
            self._wake()

    def is_durable(self, stream: LiveStream) -> bool:
        """Return whether the stream outlives the process."""
        return stream in self._numbers and not self.is_degraded

    def forget(self, stream: LiveStream) -> None:
        """Delete a stream that is not kept any longer. It takes what waits, such as its end, with the next commit."""
        number = self._numbers.pop(stream, None)
        self._attempts.pop(stream, None)
        if number is None or self._is_closed:
            return
        del self._recorded[number]
        self._work.begun.pop(number, None)
        self._work.forgotten.add(number)
        self._wake()

    async def flush(self) -> None:
        """Wait until all that was added so far is recorded, or the journal is degraded or closed. Cancel-safe."""
        work = self._work or self._writing
        if work and not self.is_degraded and not self._is_closed:
            work.done = work.done or asyncio.Event()
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
            if work is not None and work.done is not None:
                work.done.set()
        with suppress(TimeoutError, Draining, sqlite3.Error):
            await self._thread.run(CLOSE_S, self._store.close)
        self._thread.close()

    # --- Its task ------------------------------------------------------------------------------------------------

    def _note(self, stream: LiveStream, number: int, head: Head) -> None:
        self._numbers[stream], self._recorded[number] = number, Recorded(stream, head)
        stream.recorder = self

    def _note_forgotten(self) -> int:
        """Return the number of all streams that are not kept any longer: what they tell is not written."""
        self._work.forgotten.add(_FORGOTTEN)
        return _FORGOTTEN

    def _end_attempts(self, stream: LiveStream) -> None:
        """Note that a stream has a new token, or an end, if it was begun again."""
        if self._attempts.pop(stream, None) is not None:
            self._work.attempts[self._numbers[stream]] = 0

    def _wake(self) -> None:
        if not self.is_degraded:
            self._is_idle = False
            self._waker.wake()

    def _wake_to_clean(self) -> None:
        self._cleaning = None  # a commit that runs now may have been too early: behind it there is a further one
        self._wake()

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
        work, self._work = self._work, JournalWork()
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
            self._cleaning = asyncio.get_running_loop().call_later(FORGET_S, self._wake_to_clean)
        if self.is_degraded or not (self._work or has_more):
            self._is_idle = True
        self._writing = None

    async def _write(self, work: JournalWork) -> bool:
        """Write work on the thread, once more if that fails; return whether the journal has more to delete."""
        began = monotonic()
        try:
            try:
                return await self._in_time(work)
            except sqlite3.Error:
                self._counts.num_errors += 1
                await asyncio.sleep(AGAIN_S)
                return await self._in_time(work)
        finally:
            self.commit_s.observe(monotonic() - began)

    async def _in_time(self, work: JournalWork) -> bool:
        try:
            return await self._thread.run(BLOCKED_S, self._write_now, work)
        except TimeoutError:
            self._counts.num_errors += 1
            raise OSError(f"a commit takes longer than {BLOCKED_S:g} s") from None

    def _write_now(self, work: JournalWork) -> bool:
        """Write work. Journal thread: streams do not change what they have told until it is written."""
        if work.is_whole:
            self._store.rewrite(work.changes({}))
        else:
            self._store.commit(work.changes(self._marked(work) | self._held(work.forgotten)))
        return self._clean(work.is_whole or bool(work.forgotten))

    def _held(self, forgotten: set[int]) -> dict[int, LiveStream]:
        """Return the streams to write as a whole, so that batches can be deleted. Journal thread."""
        held: dict[int, LiveStream] = {}
        for number in self._store.holders(forgotten):
            if (one := self._recorded.get(number)) is not None:
                held[number] = one.stream
                if not forgotten:
                    break  # the next one with the next commit: all at once would hold this one up
        return held

    def _marked(self, work: JournalWork) -> dict[int, LiveStream]:
        """Return the streams that are begun again and recovered: what is written as a whole says so. Journal thread."""
        again = [(number, self._recorded.get(number)) for number in work.attempts]
        return {number: one.stream for number, one in again if one is not None and one.stream.is_recovered}

    def _clean(self, has_forgotten: bool) -> bool:
        """Clean the file of what was deleted, not too often; return whether there is more to delete. Journal thread."""
        now = monotonic()
        if has_forgotten and self._next_cleaning is None:
            self._next_cleaning = now + FORGET_S
        if self._store.has_unneeded:
            return True
        if self._next_cleaning is not None and now >= self._next_cleaning:
            self._next_cleaning = None
            try:
                self._store.truncate()
            except sqlite3.Error:  # what was committed stays so: to commit it again would tell it twice
                self._next_cleaning = now + FORGET_S
        return False

    def _tell_all(self, work: JournalWork) -> None:
        """Let streams take what they tell; one that cannot fails alone, and the others go on."""
        behind, failed = set[LiveStream](), set[LiveStream]()
        for _, stream, choice, delta in work.deltas:
            try:
                stream.take(choice, delta)
                if stream.is_behind:
                    behind.add(stream)
            except Exception:
                _fail(stream, failed)
        calls: list[tuple[LiveStream, Callable[[], None]]] = [
            *((stream, partial(stream.take_ending, ending)) for _, stream, ending in work.endings),
            *((stream, stream.judge) for stream in behind),
        ]
        for stream, call in calls:
            try:
                if stream not in failed:
                    call()
            except Exception:
                _fail(stream, failed)
        if work.done is not None:
            work.done.set()

    # --- A disk that cannot be written ---------------------------------------------------------------------------

    def _degrade(self, why: str, failed: JournalWork) -> None:
        """Let streams go on in memory alone: they take what was not committed, and then what came behind it."""
        self.is_degraded = True
        is_new = not self._counts.state
        self._counts.state = 1
        if is_new:  # further attempts fail as the first one
            _log.error(
                "The journal cannot be written (%s): new tokens are lost if this process ends, until it can.", why
            )
        later, self._work = self._work, JournalWork()
        self._tell_all(failed)
        self._tell_all(later)

    async def _rewrite(self) -> bool:
        """Write all streams anew; return whether that is possible again."""
        self.is_degraded = False  # what comes meanwhile waits, so that streams do not change while they are written
        attempts = {self._numbers[stream]: count for stream, count in self._attempts.items()}
        self._work = JournalWork(begun=dict(self._recorded), attempts=attempts, is_whole=True)
        await self._commit()
        if not self.is_degraded:
            self._counts.state = 0
            _log.warning("The journal can be written again: answers outlive the process.")
        return not self.is_degraded


def _fail(stream: LiveStream, failed: set[LiveStream]) -> None:
    """Fail a stream that cannot take what it tells, once, and log the exception that is handled."""
    if stream not in failed:
        failed.add(stream)
        _log.exception("a stream has failed")
        with suppress(Exception):
            stream.fail(EngineFailed("Internal error on this stream; see the server log.").info())
