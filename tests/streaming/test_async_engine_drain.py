"""A drain after Ctrl-C: requests without a token fail at once."""

import asyncio

from app.contract.events import FinishReason, RequestFailed
from app.contract.requests import Abort
from tests.fakes import FakePort, make_request, submit, turn_loop
from tests.streaming.engines import make_engine, read


async def test_a_drain_of_begun_requests_only_fails_the_others_at_once():
    port = FakePort()
    engine = make_engine(port)
    begun = submit(engine, make_request("begun", max_tokens=2))
    port.step()
    await turn_loop()
    not_begun = submit(engine, make_request("not_begun"))
    drain = asyncio.create_task(engine.drain(60, only_begun=True))
    (failed,) = await not_begun.get()
    assert isinstance(failed, RequestFailed) and failed.error.code == "draining"
    assert Abort("not_begun") in port.posted and Abort("begun") not in port.posted
    assert not drain.done()
    port.step(2)
    assert [end.reason for end in (await read(begun))[2]] == [FinishReason.LENGTH]
    async with asyncio.timeout(30):
        await drain
