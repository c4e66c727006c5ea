"""A kept response as it is and as its events: the same for all readers, from any number on."""

from __future__ import annotations

import json

import pytest

from tests.api.responses.answered import check_stream, events_in
from tests.api.responses.kept.kept_client import (
    LOGPROBS,
    PATH,
    TOOLS,
    begun,
    events_of,
    kept_client,
    number_of,
)
from tests.api.serving import until
from tests.fakes import Script


@pytest.mark.parametrize("fields", [{}, {"tools": TOOLS}, LOGPROBS, {"max_output_tokens": 3}, {"timings": True}])
async def test_a_kept_response_is_the_one_that_was_answered(fields):
    async with kept_client() as client:
        body = await client.create(**fields)
        assert body["store"] is True
        again = await client.get(body["id"], include="message.output_text.logprobs")
    assert (again.status_code, again.headers["content-type"]) == (200, "application/json")
    assert again.json() == body
    assert int(again.headers["content-length"]) == len(again.content)


@pytest.mark.parametrize("fields", [{}, {"tools": TOOLS}, LOGPROBS, {"max_output_tokens": 3}, {"background": True}])
async def test_a_stream_from_any_number_on_is_the_rest_of_the_first_one(fields):
    async with kept_client() as client:
        answer = await client.client.post(PATH, json={"input": "Hi", "stream": True, **fields})
        events = events_of(answer.content)
        response_id = json.loads(events[0].split(b"data: ")[1])["response"]["id"]
        assert [*map(number_of, events)] == [*range(len(events))]
        assert (await client.get(response_id, stream="true")).content == b"".join(events)
        for after in range(len(events)):
            rest = await client.get(response_id, stream="true", starting_after=after)
            assert rest.headers["content-type"].startswith("text/event-stream")
            assert rest.content == b"".join(events[after + 1 :])


@pytest.mark.parametrize("fields", [{}, LOGPROBS, {**LOGPROBS, "stream": True}])
async def test_every_response_is_read_as_a_stream_with_the_same_end(fields):
    """With the log-probabilities, which the last event has as the whole body does."""
    async with kept_client() as client:
        answer = await client.client.post(PATH, json={"input": "Hi", "tools": TOOLS, **fields})
        body = events_in(answer.content)[-1]["response"] if "stream" in fields else answer.json()
        events = events_in((await client.get(body["id"], stream="true")).content)
        assert (await client.get(body["id"])).json() == body
    assert check_stream(events) == body
    texts = [part for item in body["output"] if item["type"] == "message" for part in item["content"]]
    assert texts and all(bool(text["logprobs"]) == bool(fields) for text in texts)


@pytest.mark.parametrize("fields", [{}, LOGPROBS, {"max_output_tokens": 3}, {"background": True}])
async def test_a_number_behind_the_last_event_is_an_error_that_says_the_last_one(fields):
    async with kept_client() as client:
        body = await client.create(tools=TOOLS, **fields)
        stream = client.kept.find(body["id"], None)
        await until(lambda: stream.is_over)
        last = number_of(events_of((await client.get(body["id"], stream="true")).content)[-1])
        query = {"stream": "true", "starting_after": last + 1}
        error = await client.error("GET", f"{PATH}/{body['id']}", 400, params=query)
    assert (error["code"], error["param"]) == ("invalid_value", "starting_after")
    assert f"is {last + 1}, but" in error["message"] and f"has the number {last};" in error["message"]


@pytest.mark.parametrize("end", ["cancelled", "failed"])
async def test_the_last_number_of_what_was_cut_off_is_that_of_its_last_event(end):
    async with kept_client(Script(answer=["a"] * 9, fail_after=5 if end == "failed" else None), held=True) as client:
        stream = await client.running()
        await client.step(3 if end == "cancelled" else 9)
        if end == "cancelled":
            await client.client.post(f"{PATH}/{stream.id}/cancel")
        await until(lambda: stream.is_over)
        last = number_of(events_of((await client.get(stream.id, stream="true")).content)[-1])
        assert (await client.get(stream.id, stream="true", starting_after=last)).content == b""
        query = {"stream": "true", "starting_after": last + 1}
        assert str(last) in (await client.error("GET", f"{PATH}/{stream.id}", 400, params=query))["message"]


async def test_a_number_that_a_running_response_has_not_reached_is_waited_for():
    async with kept_client(held=True) as client:
        stream = await client.running()
        reading = begun(client.get(stream.id, stream="true", starting_after=500))
        await until(lambda: stream.readers)
        client.engine.release()
        assert (await reading).content == b"", "it had fewer events"
