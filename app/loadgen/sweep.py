"""A sweep over rates: a warm-up, then one run per rate, with a progress line on standard error."""

from __future__ import annotations

import asyncio
import shutil
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TextIO

from app.contract.errors import CannotStart, ConfigurationError
from app.loadgen.answer import Answer
from app.loadgen.figures import figures_of, rate_text
from app.loadgen.files import Result
from app.loadgen.load import Load
from app.loadgen.load_client import Client
from app.loadgen.load_run import Run
from app.loadgen.target import Target

RETRYABLE = (408, 429)  # the 4xx statuses of requests that may succeed later
PROGRESS_INTERVAL_S = 0.25
CLEAR = "\r\x1b[K"


async def sweep(
    target: Target, load: Load, client: Client, rates: Sequence[float], on_result: Callable[[Result], None]
) -> None:
    """Warm up, and run `load` at each rate; `on_result` gets the result of each run, also of one that is cancelled.

    Raises:
        CannotStart: all requests of a run failed, and may succeed later.
        ConfigurationError: the server rejected all requests of a run because of their content.
    """
    if warm_ups := load.warm_ups(target):
        run = Run(client, load.max_concurrency)
        async with progress(sys.stderr, "warm-up", run, len(warm_ups)):
            await run.send(warm_ups)
        _check(target, run.answers)
    for run_number, rate in enumerate(rates):
        run = Run(client, load.max_concurrency, load.duration_s)
        requests = load.requests(target, rate, run_number)
        try:
            async with progress(sys.stderr, f"rate {rate_text(rate)}", run, load.count(rate)):
                await run.send(requests)
        finally:
            if any(answer.status != "open" for answer in run.answers):
                on_result(Result(figures_of(run, rate), run.answers, run.began))
        _check(target, run.answers)


@asynccontextmanager
async def progress(stream: TextIO, title: str, run: Run, count: int | None) -> AsyncIterator[None]:
    """Show the progress of a run during the block: a line that is rewritten on a terminal, else only the title."""
    if not stream.isatty():
        print(title, file=stream, flush=True)
        yield
        return
    task = asyncio.create_task(_show_progress(stream, title, run, count), name="quire-bench-progress")
    try:
        yield
    finally:
        task.cancel()
        stream.write(CLEAR)
        stream.flush()


def progress_line(title: str, run: Run, count: int | None) -> str:
    """Return the numbers of requests by status, and the seconds since the run began."""
    found, sent = Counter(answer.status for answer in run.answers), len(run.answers)
    parts = [f"{sent:,} sent" if count is None else f"{sent:,} of {count:,} sent", f"{run.num_open:,} open"]
    parts += [f"{found[status]:,} {status}" for status in ("completed", "failed", "cancelled") if found[status]]
    return f"{title}: {', '.join(parts)}; {time.perf_counter() - run.began:.0f} s"


async def _show_progress(stream: TextIO, title: str, run: Run, count: int | None) -> None:
    while True:
        await asyncio.sleep(PROGRESS_INTERVAL_S)
        columns = shutil.get_terminal_size().columns
        stream.write(CLEAR + progress_line(title, run, count)[: columns - 1])  # a wrapped line cannot be rewritten
        stream.flush()


def _check(target: Target, answers: Sequence[Answer]) -> None:
    failed = [answer for answer in answers if answer.status == "failed"]
    if len(failed) < len(answers):
        return
    first = failed[0]
    how_many = f"all {len(failed)} requests; the first" if len(failed) > 1 else "the request"
    message = f"{target.url} has failed {how_many}: {first.error}, {first.message}"
    if 400 <= first.http_status < 500 and first.http_status not in RETRYABLE:
        raise ConfigurationError(message)
    raise CannotStart(message)
