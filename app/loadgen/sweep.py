"""The turns of a benchmark: the warm-up, then one run for each rate; each run's result is handed on as it ends."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from app.contract.errors import CannotStart, ConfigurationError
from app.loadgen.answer import Answer
from app.loadgen.figures import figures_of, rate_text
from app.loadgen.files import Result
from app.loadgen.load import Load
from app.loadgen.load_client import Client
from app.loadgen.load_run import Run
from app.loadgen.progress import Progress
from app.loadgen.target import Target

NOT_NOW = (408, 429)  # of the 4xx those that another time may be answered


class Turns:
    """Measures one server at several rates."""

    def __init__(self, target: Target, load: Load, client: Client, done: Callable[[Result], None]) -> None:
        self._target = target
        self._load = load
        self._client = client
        self._done = done

    async def measure(self, rates: Sequence[float]) -> None:
        """Warm up and measure at each rate; a run that is stopped hands on what it has.

        Raises:
            CannotStart: the server answers nothing now.
            ConfigurationError: it refuses everything for what is asked.
        """
        if warm_ups := self._load.warm_ups(self._target):
            run = Run(self._client, self._load.max_concurrency)
            async with Progress(sys.stderr, "warm-up", run, len(warm_ups)):
                await run.send(warm_ups)
            self._check(run.answers)
        for turn, rate in enumerate(rates):
            run = Run(self._client, self._load.max_concurrency, self._load.duration_s)
            requests = self._load.requests(self._target, rate, turn)
            try:
                async with Progress(sys.stderr, f"rate {rate_text(rate)}", run, self._load.count(rate)):
                    await run.send(requests)
            finally:
                if any(answer.status != "open" for answer in run.answers):
                    self._done(Result(figures_of(run, rate), run.answers, run.began))
            self._check(run.answers)

    def _check(self, answers: Sequence[Answer]) -> None:
        failed = [answer for answer in answers if answer.status == "failed"]
        if len(failed) < len(answers):
            return
        first = failed[0]
        how_many = f"all {len(failed)} requests; the first" if len(failed) > 1 else "the request"
        message = f"{self._target.url} has failed {how_many}: {first.error}, {first.message}"
        if 400 <= first.http_status < 500 and first.http_status not in NOT_NOW:
            raise ConfigurationError(message)
        raise CannotStart(message)
