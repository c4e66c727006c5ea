"""The async engine over an engine with its scheduler: which requests wait, are paused, and are admitted."""

import asyncio
from collections.abc import Callable

import pytest

from app.config.settings import Config, SchedulerConfig, ServerConfig
from app.contract.engine_status import EngineHealth, EngineState, ModelInfo, StepReport
from app.contract.errors import Overloaded, RateLimitExceeded
from app.contract.requests import EngineCommand, EngineRequest
from app.contract.sampling_params import SamplingParams
from app.engine.engine import Engine
from app.runtime.clock import monotonic
from app.streaming.async_engine import AsyncEngine
from app.streaming.flow.mailbox import Mailbox
from tests.checkpoints import tiny
from tests.engine.driving import build
from tests.fakes import submit, turn_loop


class SteppedPort:
    """An engine without its thread: a test decides when commands and steps are executed."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._inbox: list[EngineCommand] = []
        self._deliver: Callable[[StepReport], None] = lambda report: None

    def start(self, deliver: Callable[[StepReport], None]) -> None:
        self._deliver = deliver

    def post(self, command: EngineCommand) -> None:
        self._inbox.append(command)

    def health(self) -> EngineHealth:
        return EngineHealth(EngineState.READY, 1.0)

    def model_info(self) -> ModelInfo | None:
        return self.engine.model_info

    def stop(self) -> None: ...

    def join(self, timeout_s: float) -> bool:
        return True

    def turn(self) -> None:
        """Do one turn of the engine thread."""
        report = self.engine.turn(self._inbox, 0.0)
        self._inbox.clear()
        self.engine.scheduler.check_integrity()
        self._deliver(report)


class BridgedEngine:
    """An engine and its async engine."""

    def __init__(self, *, num_kv_blocks: int = 256, **settings: int) -> None:
        scheduler = {"max_queue": 8, "max_num_seqs": 4} | settings
        max_paused = scheduler.pop("max_paused_per_account", 64)
        config = Config(scheduler=SchedulerConfig(**scheduler), server=ServerConfig(max_paused_per_account=max_paused))
        engine = build(
            tiny("Llama"),
            num_kv_blocks=num_kv_blocks,
            max_num_seqs=config.scheduler.max_num_seqs,
            scheduling_policy=config.scheduler.scheduling_policy,
        )
        self.port = SteppedPort(engine)
        self.engine = AsyncEngine(self.port, config)
        self.engine.start()
        self.num_submitted = 0

    def send(self, account: str = "", *, num_prompt: int = 20, max_tokens: int = 200) -> tuple[str, Mailbox]:
        """Submit a request; return its id and its mailbox."""
        self.num_submitted += 1
        prompt = tuple(3 + (self.num_submitted * 7 + position) % 50 for position in range(num_prompt))
        params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True, seed=0)
        model_info = self.port.engine.model_info
        request = EngineRequest(
            f"r{self.num_submitted}", prompt, params.with_defaults(model_info.defaults), monotonic(), account=account
        )
        return request.id, submit(self.engine, request)

    async def turns(self, count: int = 1) -> None:
        for _ in range(count):
            self.port.turn()
            await turn_loop()

    async def start_paused(self, account: str = "", count: int = 4) -> list[str]:
        """Start `count` streams and pause them."""
        ids = [self.send(account)[0] for _ in range(count)]
        await self.turns(3)
        for request_id in ids:
            self.engine.pause(request_id)
        await self.turns(2)
        return ids


async def test_paused_streams_without_blocks_do_not_count_as_waiting():
    bridged = BridgedEngine(num_kv_blocks=24)
    ids: list[str] = []
    for _ in range(6):
        ids += await bridged.start_paused()
    lost = [one for one in ids if bridged.port.engine.scheduler._groups[one].status not in ("paused", "running")]
    assert len(lost) >= 8, "the pool is too large for this test"
    stats = bridged.engine.stats()
    assert (stats.queues.num_running, stats.queues.num_waiting, stats.queues.num_paused) == (0, 0, 24)
    _, mailbox = bridged.send(max_tokens=2)
    await bridged.turns(4)
    assert mailbox.is_complete


async def test_a_resumed_request_counts_as_waiting():
    bridged = BridgedEngine()
    ids = await bridged.start_paused(count=4)
    await bridged.start_paused(count=4)
    for _ in range(4):
        bridged.send()
    await bridged.turns()
    assert bridged.engine.stats().queues.num_running == 4
    for request_id in ids:
        bridged.engine.resume(request_id)
    await bridged.turns()
    stats = bridged.engine.stats()
    assert (stats.queues.num_running, stats.queues.num_waiting, stats.queues.num_paused) == (4, 4, 4)


async def test_an_account_with_too_many_paused_streams_is_rejected_until_one_resumes():
    bridged = BridgedEngine(max_paused_per_account=4)
    ids = await bridged.start_paused("a", count=4)
    with pytest.raises(RateLimitExceeded, match="4 streams of this account are paused"):
        bridged.send("a")
    bridged.send("b")
    bridged.engine.resume(ids[0])
    bridged.send("a")
    bridged.engine.pause(ids[0])
    bridged.engine.abort(ids[1])
    await bridged.turns(2)
    bridged.send("a")


async def test_beside_a_flooding_account_another_is_admitted_and_starts_at_once():
    bridged = BridgedEngine()
    for _ in range(12):
        bridged.send("flood")
    with pytest.raises(Overloaded):
        bridged.send("flood")
    await bridged.turns(3)
    _, mailbox = bridged.send("other", max_tokens=4)
    await bridged.turns(5)
    assert mailbox.is_complete
    assert bridged.engine.stats().preemption.num_preemptions == 0
    with pytest.raises(Overloaded, match=r"half of the queue|is full"):
        bridged.send("flood")


async def test_paused_streams_of_one_account_do_not_keep_others_from_running():
    bridged = BridgedEngine(num_kv_blocks=24)
    for _ in range(5):
        await bridged.start_paused("paused")
    _, mailbox = bridged.send("other", num_prompt=100, max_tokens=4)
    await bridged.turns(6)
    assert mailbox.is_complete


async def test_accounts_share_cached_blocks():
    bridged = BridgedEngine()
    model_info = bridged.port.engine.model_info
    params = SamplingParams(temperature=0.0, max_tokens=1, seed=0).with_defaults(model_info.defaults)
    for account in ("a", "b"):
        submit(bridged.engine, EngineRequest(account, tuple(range(3, 40)), params, 0.0, account=account))
        await bridged.turns(3)
    assert bridged.engine.stats().starts.num_prefix_hits == 32
    assert not asyncio.all_tasks() - {asyncio.current_task()}
