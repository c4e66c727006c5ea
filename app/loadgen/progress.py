"""Says on standard error how far a run is: one line that is rewritten on a terminal, one per run elsewhere."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections import Counter
from typing import TextIO

from app.loadgen.load_run import Run

EVERY_S = 0.25
CLEAR = "\r\x1b[K"


class Progress:
    """Shows a run while its block lasts; looks at it a few times a second."""

    def __init__(self, stream: TextIO, title: str, run: Run, count: int | None) -> None:
        self._stream = stream
        self._title = title
        self._run = run
        self._count = count
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> None:
        if self._stream.isatty():
            self._task = asyncio.create_task(self._show(), name="quire-bench-progress")
        else:
            print(self._title, file=self._stream, flush=True)

    async def __aexit__(self, *exception: object) -> None:
        if self._task is not None:
            self._task.cancel()
            self._stream.write(CLEAR)
            self._stream.flush()

    def line(self) -> str:
        """Return how far it is."""
        found = Counter(answer.status for answer in self._run.answers)
        sent = len(self._run.answers)
        parts = [f"{sent:,} of {self._count:,} sent" if self._count is not None else f"{sent:,} sent"]
        parts += [f"{self._run.num_open:,} open"]
        parts += [f"{found[status]:,} {status}" for status in ("completed", "failed", "cancelled") if found[status]]
        return f"{self._title}: {', '.join(parts)}; {time.perf_counter() - self._run.began:.0f} s"

    async def _show(self) -> None:
        while True:
            await asyncio.sleep(EVERY_S)
            columns = shutil.get_terminal_size().columns
            self._stream.write(CLEAR + self.line()[: columns - 1])  # a line that wraps could not be rewritten
            self._stream.flush()
