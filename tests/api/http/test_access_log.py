"""Every stream on a WebSocket leaves one line in the access log."""

import json
import logging
from collections.abc import Callable
from typing import Any

import pytest

from app.contract.events import Usage
from app.observe.log import ACCESS_LOGGER, JsonFormatter
from tests.api.chat_client import open_chat
from tests.api.serving import until
from tests.fakes import FakeEngine, Script


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Callable[[], list[dict[str, Any]]]:
    """The lines of streams in the access log so far, parsed."""
    caplog.set_level(logging.INFO, ACCESS_LOGGER)

    def read() -> list[dict[str, Any]]:
        found = [json.loads(JsonFormatter().format(record)) for record in caplog.records]
        return [line for line in found if line["logger"] == ACCESS_LOGGER and line["method"] == "START"]

    return read


async def test_every_stream_is_logged_once_with_its_reason_and_tokens(lines: Callable[[], list[dict[str, Any]]]):
    engine = FakeEngine(held=True)
    async with open_chat(engine) as chat:
        await chat.start("a", max_tokens=4)
        await chat.receive_until("accepted")
        engine.step(4)
        await chat.receive_until("done")
        await chat.start("b", temperature=9)
        await chat.receive_until("error")
        await chat.start("c")
        await chat.receive_until("accepted")
        engine.step(3)
        await chat.send(t="cancel", id="c")
        await chat.receive_until("done")
        engine.port.script.fail_after = 2
        await chat.start("d")
        await chat.receive_until("accepted")
        engine.step(3)
        await chat.receive_until("error")
    complete, rejected, cancelled, failed = lines()
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
    assert (complete["queue_ms"], complete["first_token_ms"]) == (1.0, 2.0), "the times of the scripted engine"
    assert rejected.keys().isdisjoint({"queue_ms", "first_token_ms"})
    assert complete["request_id"] == rejected["request_id"] == cancelled["request_id"] == failed["request_id"] != ""


async def test_a_log_line_sums_all_choices_and_omits_zero_counts(
    lines: Callable[[], list[dict[str, Any]]],
):
    engine = FakeEngine(Script(others=[["a"]], usage=Usage(0, 0, 3, 2, 50)))
    async with open_chat(engine) as chat:
        await chat.start(n=3, max_tokens=4)
        await chat.receive_until("done")
        engine.port.script.usage = Usage(0, 0)
        await chat.start(n=2, max_tokens=4)
        await chat.receive_until("done")
    preempted, plain = lines()
    assert (preempted["n"], preempted["reason"], preempted["completion_tokens"]) == (3, "length, stop", 9)
    assert (preempted["cached_tokens"], preempted["preemptions"], preempted["lost_tokens"]) == (3, 2, 50)
    assert (plain["n"], plain["completion_tokens"]) == (2, 5)
    assert plain.keys().isdisjoint({"cached_tokens", "preemptions", "lost_tokens"})


@pytest.mark.parametrize("way", ["disconnect", "close"])
async def test_the_log_line_of_a_disconnected_stream_has_the_cause_and_its_tokens(
    way: str, lines: Callable[[], list[dict[str, Any]]]
):
    engine = FakeEngine(held=True)
    async with open_chat(engine) as chat:
        await chat.start(n=2)
        await chat.receive_until("accepted")
        engine.step(2)
        await chat.receive_until("delta", count=2)
        if way == "disconnect":
            await chat.socket.close()
        else:
            await chat.socket.send(b"binary")
        await until(lines)
    (line,) = lines()
    assert line["reason"] == {"disconnect": "client_disconnected", "close": "closed_1003"}[way]
    assert (line["completion_tokens"], line["prompt_tokens"]) == (4, len(engine.requests[0].prompt_token_ids))
