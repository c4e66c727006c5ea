"""The readers of one server's answers, all at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from app.runtime.clock import monotonic
from benchmarks.resuming.answer_reader import AnswerReader, Broken
from benchmarks.resuming.oracle import Oracle
from benchmarks.resuming.told import WrongAnswer


class Company:
    """Reads answers until they are over, however often their server is killed. Loop only."""

    def __init__(self, readers: Sequence[AnswerReader]) -> None:
        self._readers = readers
        self._faults: dict[AnswerReader, str] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._num_over = 0
        self._due: tuple[Callable[[], bool], Callable[[], object]] | None = None
        self._has_acted = asyncio.Event()
        self._killed_at: float | None = None
        self._had: dict[AnswerReader, tuple[int, int]] = {}  # breaks and tokens when the server was killed
        self._first_s: dict[AnswerReader, float] = {}

    @property
    def num_tokens(self) -> int:
        """The tokens that were received, of all answers."""
        return sum(reader.num_received for reader in self._readers)

    @property
    def num_accepted(self) -> int:
        """The number of answers that have their ids."""
        return sum(reader.stream is not None for reader in self._readers)

    @property
    def first_tokens_s(self) -> list[float]:
        """The seconds from the kill to the first new token of each answer that was not over, the shortest first."""
        return sorted(self._first_s.values())

    def start(self) -> None:
        """Begin to read."""
        for reader in self._readers:
            reader.on_news = partial(self._note, reader)
            self._tasks.append(asyncio.create_task(self._read(reader)))

    async def when(self, is_reached: Callable[[], bool], act: Callable[[], object]) -> None:
        """Call `act` as soon as something holds, before more is received, or all answers are over; return then."""
        self._due = is_reached, act
        self._has_acted.clear()
        self._act_if_due()
        await self._has_acted.wait()

    def note_kill(self) -> None:
        """Note that the server was killed now."""
        self._killed_at = monotonic()
        self._had = {reader: (reader.num_breaks, reader.num_received) for reader in self._readers}
        self._first_s.clear()

    async def finish(self, oracle: Oracle) -> list[str]:
        """Wait for the ends; return a line for each answer that is not the undisturbed one."""
        await asyncio.gather(*self._tasks)
        for reader in self._readers:
            if reader not in self._faults and (difference := reader.told.difference(oracle.whole(reader.asked))):
                self._faults[reader] = difference
        return [f"{reader.asked}: {fault}" for reader, fault in self._faults.items()]

    def stop(self) -> None:
        """Read no longer. Idempotent."""
        for task in self._tasks:
            task.cancel()

    async def _read(self, reader: AnswerReader) -> None:
        try:
            await reader.read()
        except (Broken, WrongAnswer) as error:
            self._faults[reader] = f"{error} (after {reader.num_received} tokens, {reader.num_breaks} breaks)"
        finally:
            self._num_over += 1
            self._act_if_due()

    def _note(self, reader: AnswerReader) -> None:
        self._act_if_due()
        if self._killed_at is None or reader in self._first_s:
            return
        num_breaks, num_received = self._had[reader]
        if reader.num_breaks == num_breaks:  # it was sent before the kill
            self._had[reader] = num_breaks, reader.num_received
        elif reader.num_received > num_received:
            self._first_s[reader] = monotonic() - self._killed_at

    def _act_if_due(self) -> None:
        if self._due is None:
            return
        is_reached, act = self._due
        if is_reached() or self._num_over == len(self._readers):
            self._due = None
            act()
            self._has_acted.set()
