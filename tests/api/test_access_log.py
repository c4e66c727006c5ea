"""Every stream on a WebSocket leaves one line in the access log."""

import json
import logging
from collections.abc import Callable
from typing import Any

import pytest

from app.contract.events import Usage
from app.observe.log import ACCESS_LOGGER, JsonFormatter
from tests.api.serving import until
from tests.api.talk import talking
from tests.fakes import FakeEngine, Script


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Callable[[], list[dict[str, Any]]]:
    """The lines of streams in the access log so far, parsed."""
    caplog.set_level(logging.INFO, ACCESS_LOGGER)

    def read() -> list[dict[str, Any]]:
        found = [json.loads(JsonFormatter().format(record)) for record in caplog.records]
        return [line for line in found if line["logger"] == ACCESS_LOGGER and line["method"] == "START"]

    return read


async def test_every_stream_leaves_one_line_with_its_reason_and_tokens(lines: Callable[[], list[dict[str, Any]]]):
    engine = FakeEngine(held=True)
    async with talking(engine) as talk:
        await talk.start("a", max_tokens=4)
        await talk.hear_until("accepted")
        engine.step(4)
        await talk.hear_until("done")
        await talk.start("b", temperature=9)
        await talk.hear_until("error")
        await talk.start("c")
        await talk.hear_until("accepted")
        engine.step(3)
        await talk.say(t="cancel", id="c")
        await talk.hear_until("done")
        engine.port.script.fail_after = 2
        await talk.start("d")
        await talk.hear_until("accepted")
        engine.step(3)
        await talk.hear_until("error")
    complete, refused, cancelled, failed = lines()
    assert [line.get("n") for line in lines()] == [1, None, 1, 1]
    num_prompt = [len(request.prompt_token_ids) for request in engine.requests]
    names = ("stream", "status", "reason", "prompt_tokens", "completion_tokens")
    assert [tuple(line[name] for name in names) for line in lines()] == [
        (engine.requests[0].id, 200, "length", num_prompt[0], 4),
        (None, 400, "invalid_value", 0, 0),
        (engine.requests[1].id, 200, "cancelled", num_prompt[1], 3),
        (engine.requests[2].id, 500, "engine_error", num_prompt[2], 2),
    ]
    assert all(line["path"] == "/ws" and line["client"] and line["duration_ms"] >= 0 for line in lines())
    assert complete["request_id"] == refused["request_id"] == cancelled["request_id"] == failed["request_id"] != ""


async def test_a_line_counts_all_choices_and_tells_what_they_suffered_once(lines: Callable[[], list[dict[str, Any]]]):
    engine = FakeEngine(Script(others=[["a"]], usage=Usage(0, 0, 3, 2, 50)))
    async with talking(engine) as talk:
        await talk.start(n=3, max_tokens=4)
        await talk.hear_until("done")
        engine.port.script.usage = Usage(0, 0)
        await talk.start(n=2, max_tokens=4)
        await talk.hear_until("done")
    suffered, plain = lines()
    assert (suffered["n"], suffered["reason"], suffered["completion_tokens"]) == (3, "length, stop", 9)
    assert (suffered["cached_tokens"], suffered["preemptions"], suffered["lost_tokens"]) == (3, 2, 50)
    assert (plain["n"], plain["completion_tokens"]) == (2, 5)
    assert plain.keys().isdisjoint({"cached_tokens", "preemptions", "lost_tokens"})


@pytest.mark.parametrize("way", ["disconnect", "close"])
async def test_a_stream_that_its_connection_ends_says_so_and_what_was_read(
    way: str, lines: Callable[[], list[dict[str, Any]]]
):
    engine = FakeEngine(held=True)
    async with talking(engine) as talk:
        await talk.start(n=2)
        await talk.hear_until("accepted")
        engine.step(2)
        await talk.hear_until("delta", count=2)
        if way == "disconnect":
            await talk.socket.close()
        else:
            await talk.socket.send(b"binary")
        await until(lines)
    (line,) = lines()
    assert line["reason"] == {"disconnect": "client_disconnected", "close": "closed_1003"}[way]
    assert (line["completion_tokens"], line["prompt_tokens"]) == (4, len(engine.requests[0].prompt_token_ids))
