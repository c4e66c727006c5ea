"""An async engine over a fake engine thread, and a reader of its streams."""

import asyncio
from typing import Any

from app.config.settings import Config, SchedulerConfig
from app.contract.events import TokenDelta
from app.streaming.async_engine import AsyncEngine
from app.streaming.flow.mailbox import Mailbox
from tests.fakes import FakePort


def make_engine(port: FakePort, *, max_queue: int = 256, max_num_seqs: int = 64, observe: Any = None) -> AsyncEngine:
    scheduler = SchedulerConfig(max_queue=max_queue, max_num_seqs=max_num_seqs)
    engine = AsyncEngine(port, Config(scheduler=scheduler), observe)
    engine.start()
    return engine


async def read(mailbox: Mailbox) -> tuple[tuple[int, ...], str, list[Any]]:
    """Read a stream to its end: token ids, text, terminal events."""
    ids: tuple[int, ...] = ()
    text, ends = "", []
    async with asyncio.timeout(30):
        while events := await mailbox.get():
            for event in events:
                if isinstance(event, TokenDelta):
                    assert event.first == len(ids) + 1
                    ids, text = ids + event.token_ids, text + event.text
                else:
                    ends.append(event)
    return ids, text, ends
