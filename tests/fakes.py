"""Shared test doubles: a clock, and an engine client over the thread of `fake_port`. Nothing here sleeps."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from app.config.settings import Config
from app.contract.engine_status import EngineState
from app.contract.ports import EngineClient, EventSink
from app.contract.requests import Abort, EngineRequest
from app.contract.sampling_params import SamplingParams
from app.streaming.async_engine import AsyncEngine
from app.streaming.flow.mailbox import Mailbox
from tests.fake_port import MODEL_INFO as MODEL_INFO
from tests.fake_port import WORDS as WORDS
from tests.fake_port import FakePort, Script
from tests.fake_port import text_of as text_of
from tests.fake_port import token_of as token_of
from tests.fake_port import tokens_of as tokens_of


class FakeClock:
    """A clock that only `advance` moves."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        """Let `seconds` pass."""
        self.now += seconds


def make_request(
    request_id: str = "r",
    *,
    max_tokens: int = 8,
    prompt: Sequence[int] = (1, 2, 3),
    account: str = "",
    **params: Any,
) -> EngineRequest:
    """A plain request; `params` are further sampling parameters."""
    given = SamplingParams(max_tokens=max_tokens, seed=0, **params)
    return EngineRequest(request_id, tuple(prompt), given, 0.0, account=account)


class FakeEngine(AsyncEngine):
    """An `EngineClient` that does one step per turn of the loop, unless it is held.

    It starts with the first request, so that it can be constructed outside of a loop. `Script` says what it generates.

    Attributes:
        port: the `FakePort` behind it (`port.state`, `port.posted`, `port.script`).
        requests: every submitted request.
        aborted: ids of the requests that were aborted, once per abort command.
    """

    def __init__(self, script: Script | None = None, config: Config | None = None, *, held: bool = False) -> None:
        self.port = FakePort(script)
        self.requests: list[EngineRequest] = []
        self._is_held = held
        self._is_stepping = False
        super().__init__(self.port, config or Config())

    @property
    def aborted(self) -> list[str]:
        """Ids of aborted requests, in order."""
        return [command.request_id for command in self.port.posted if isinstance(command, Abort)]

    def start(self) -> None:
        """Bind to the running loop; calling it again changes nothing."""
        if self._loop is None:
            super().start()

    def submit_all(self, submissions: Sequence[tuple[EngineRequest, EventSink]]) -> None:
        """Submit requests; their tokens come with the next steps."""
        self.start()
        super().submit_all(submissions)
        self.requests += [request for request, _ in submissions]
        self._schedule()

    def abort(self, request_id: str) -> None:
        """Abort a request; a held engine does a step for it."""
        super().abort(request_id)
        if self._is_held:
            self.step()
        self._schedule()

    def hold(self) -> None:
        """Generate nothing until `release` or `step`."""
        self._is_held = True

    def release(self) -> None:
        """Step without `step` again."""
        self._is_held = False
        self._schedule()

    def step(self, count: int = 1) -> None:
        """Do steps at once; readers get their events in the loop's next turn."""
        self.start()
        self.port.step(count)

    def resume(self, request_id: str) -> None:
        """Generate again for a paused request."""
        super().resume(request_id)
        self._schedule()

    def _schedule(self) -> None:
        if not self._is_stepping and not self._is_held and self._loop is not None:
            self._is_stepping = True
            self._loop.call_soon(self._step_by_itself)

    def _step_by_itself(self) -> None:
        self._is_stepping = False
        if not self._is_held and self.port.has_work and self.port.state is EngineState.READY:
            self.port.step()
            self._schedule()


def submit(engine: EngineClient, request: EngineRequest) -> Mailbox:
    """Submit a request; its events go to the mailbox that is returned."""
    mailbox = Mailbox(request.params.n)
    engine.submit(request, mailbox)
    return mailbox


async def turn_loop(times: int = 5) -> None:
    """Let the callbacks that are ready on the loop run."""
    for _ in range(times):
        await asyncio.sleep(0)
