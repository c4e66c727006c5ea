"""A drain for a person at a terminal: what has no token yet is not waited for."""

import asyncio

from app.contract.events import FinishReason, RequestFailed
from app.contract.requests import Abort
from tests.fakes import FakePort, make_request, submit, turn_loop
from tests.streaming.test_bridge import make_engine, read


async def test_a_drain_for_a_person_fails_what_has_not_begun_at_once_and_waits_for_the_rest():
    port = FakePort()
    engine = make_engine(port)
    begun = submit(engine, make_request("begun", max_tokens=2))
    port.step()
    await turn_loop()
    unbegun = submit(engine, make_request("unbegun"))
    drain = asyncio.create_task(engine.drain(60, only_begun=True))
    (failed,) = await unbegun.get()
    assert isinstance(failed, RequestFailed) and failed.error.code == "draining"
    assert Abort("unbegun") in port.posted and Abort("begun") not in port.posted
    assert not drain.done()
    port.step(2)
    assert [end.reason for end in (await read(begun))[2]] == [FinishReason.LENGTH]
    async with asyncio.timeout(5):
        await drain
