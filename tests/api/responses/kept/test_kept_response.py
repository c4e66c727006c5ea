"""The routes of kept responses: what each request is answered, and to whom."""

from __future__ import annotations

import json
import logging

import pytest
from openai.types.responses import Response

from app.api.wire.resumable_answer import Resumable
from app.observe.log import ACCESS_LOGGER, JsonFormatter
from app.streaming.kept.live_stream import State
from tests.api.responses.answered import check_stream, events_in, types_in
from tests.api.responses.kept.kept_client import PATH, TOOLS, begun, events_of, kept_client, script
from tests.api.serving import connected, make_app, serving, until
from tests.fakes import FakeEngine, Script


async def test_two_readers_of_a_running_response_get_the_same_events_whenever_they_come():
    """One comes early and gets each token at once; the others come late, when many tokens have waited."""
    async with kept_client(held=True) as client:
        stream = await client.running()
        first = begun(client.get(stream.id, stream="true"))
        await until(lambda: stream.readers)
        for _ in range(8):
            await client.step()
        second = begun(client.get(stream.id, stream="true", starting_after=5))
        await until(lambda: len(stream.readers) == 2)
        client.engine.release()
        early, late = (await first).content, (await second).content
        later = (await client.get(stream.id, stream="true")).content
    assert early == later and late == b"".join(events_of(early)[6:])
    assert types_in(events_in(early))[:4] == ["created", "queued", "in_progress", "output_item.added"]


async def test_unknown_forgotten_and_foreign_responses_are_answered_alike():
    engine = FakeEngine(Script(answer=["a"]))
    async with kept_client(api_key=("one", "two")) as client:
        one, two = ({"authorization": f"Bearer {key}"} for key in ("one", "two"))
        client.engine.port.script = engine.port.script
        foreign, gone = [
            (await client.client.post(PATH, json={"input": "Hi"}, headers=key)).json()["id"] for key in (one, two)
        ]
        client.kept.forget(client.kept.find(gone, "key-2"))
        unknown = f"resp_{'0' * 32}"
        for method, end in (("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/input_items")):
            bodies = set()
            for response_id in (foreign, gone, unknown):
                answer = await client.client.request(method, f"{PATH}/{response_id}{end}", headers=two)
                assert answer.status_code == 404
                bodies.add(answer.content.replace(response_id.encode(), b"ID"))
            assert len(bodies) == 1
            assert b"Response with id 'ID' not found." in bodies.pop()
        for response_id in (foreign, gone, unknown):
            body = {"input": "Hi", "previous_response_id": response_id}
            answer = await client.client.post(PATH, json=body, headers=two)
            assert answer.status_code == 400
            assert answer.json()["error"]["code"] == "previous_response_not_found"
        assert (await client.client.get(f"{PATH}/{foreign}", headers=one)).status_code == 200
        assert (await client.client.get(f"{PATH}/{foreign}")).status_code == 401


async def test_what_shall_not_be_stored_is_not():
    async with kept_client() as client:
        body = await client.create(store=False)
        assert body["store"] is False and len(client.kept) == 0
        await client.error("GET", f"{PATH}/{body['id']}", 404)


@pytest.mark.parametrize("settings", [{"resume_memory": 0}, {"response_ttl": 0}])
async def test_without_memory_the_response_is_answered_and_not_kept(settings):
    async with kept_client(**settings) as client:
        body = await client.create()
        assert (body["status"], body["store"]) == ("completed", False)
        streamed = await client.client.post(PATH, json={"input": "Hi", "stream": True})
        assert check_stream(events_in(streamed.content))["store"] is False
        assert len(client.kept) == 0
        error = await client.error("POST", PATH, 503, json={"input": "Hi", "background": True})
        assert error["code"] == "overloaded"
        assert not client.engine.port.has_work


async def test_many_kept_responses_stay_within_the_memory_and_the_oldest_goes():
    async with kept_client(Script(answer=["a"]), resume_memory=2**20) as client:
        ids = [(await client.create("word " * 900))["id"] for _ in range(60)]
        assert client.kept.num_bytes <= 2**20
        assert 0 < len(client.kept) < 60
        await client.error("GET", f"{PATH}/{ids[0]}", 404)
        assert (await client.get(ids[-1])).status_code == 200


async def test_a_response_is_kept_for_its_time_and_then_forgotten():
    async with kept_client(response_ttl=77) as client:
        body = await client.create()
        stream = client.kept.find(body["id"], None)
        assert stream.ttl_s == 77
        client.kept._expire(stream)
        await client.error("GET", f"{PATH}/{body['id']}", 404)


async def test_a_response_in_the_background_is_queued_then_runs_and_ends_without_a_reader():
    async with kept_client(held=True) as client:
        body = await client.create(background=True, instructions="Be brief.", tools=TOOLS)
        typed = Response.model_validate(body, strict=True)
        assert (typed.status, typed.background, typed.output, typed.usage) == ("queued", True, [], None)
        await client.step(2)
        running = (await client.get(body["id"])).json()
        assert (running["status"], running["instructions"], len(running["tools"])) == ("in_progress", "Be brief.", 1)
        client.engine.release()
        stream = client.kept.find(body["id"], None)
        await until(lambda: stream.is_over)
        ended = (await client.get(body["id"])).json()
    assert (ended["status"], ended["background"]) == ("completed", True)
    assert [item["type"] for item in ended["output"]] == ["reasoning", "message", "function_call"]


async def test_a_background_stream_begins_before_the_model_does_and_ends_with_its_failure():
    async with kept_client(Script(fail_after=0), held=True) as client:
        stream = await client.running()
        reading = begun(client.get(stream.id, stream="true"))
        await until(lambda: stream.readers)
        client.engine.release()
        answer = await reading
        kept = (await client.get(stream.id)).json()
    events = events_in(answer.content)
    assert answer.status_code == 200 and types_in(events) == ["created", "queued", "failed"]
    assert events[-1]["response"] == kept and kept["error"]["quire_code"] == "engine_error"


async def test_a_cancel_ends_a_response_for_all_and_keeps_what_it_has():
    async with kept_client(held=True) as client:
        stream = await client.running()
        reading = begun(client.get(stream.id, stream="true"))
        await client.step(9)
        answer = await client.client.post(f"{PATH}/{stream.id}/cancel")
        cancelled = answer.json()
        assert (answer.status_code, cancelled["status"], cancelled["usage"]) == (200, "cancelled", None)
        Response.model_validate(cancelled, strict=True)
        assert client.engine.aborted == [stream.id]
        last = events_in((await reading).content)[-1]
        assert (last["type"], last["response"]) == ("response.incomplete", cancelled)
        again = await client.client.post(f"{PATH}/{stream.id}/cancel")
        assert again.json() == cancelled == (await client.get(stream.id)).json()
    assert cancelled["output"][-1]["status"] == "incomplete"


async def test_a_cancel_of_an_ended_response_changes_nothing_and_of_one_with_a_client_is_refused():
    async with kept_client() as client:
        body = await client.create(background=True)
        stream = client.kept.find(body["id"], None)
        await until(lambda: stream.is_over)
        ended = (await client.get(body["id"])).json()
        assert (await client.client.post(f"{PATH}/{body['id']}/cancel")).json() == ended
        other = await client.create()
        error = await client.error("POST", f"{PATH}/{other['id']}/cancel", 400)
    assert ended["status"] == "completed" and error["code"] == "invalid_value"


async def test_a_delete_forgets_a_response_and_ends_the_conversations_that_go_on_from_it():
    async with kept_client() as client:
        first = await client.create()
        second = await client.create("And?", previous_response_id=first["id"])
        answer = await client.client.delete(f"{PATH}/{first['id']}")
        assert answer.json() == {"id": first["id"], "object": "response.deleted", "deleted": True}
        await client.error("GET", f"{PATH}/{first['id']}", 404)
        await client.error("DELETE", f"{PATH}/{first['id']}", 404)
        for previous in (first, second):
            body = {"input": "Hi", "previous_response_id": previous["id"]}
            assert (await client.error("POST", PATH, 400, json=body))["code"] == "previous_response_not_found"
        assert (await client.get(second["id"])).status_code == 200


async def test_a_delete_ends_a_response_that_runs_also_for_those_who_read_it():
    async with kept_client(held=True) as client:
        stream = await client.running()
        reading = begun(client.get(stream.id, stream="true"))
        await until(lambda: stream.readers)
        await client.step(3)
        assert (await client.client.delete(f"{PATH}/{stream.id}")).status_code == 200
        last = events_in((await reading).content)[-1]
    assert last["response"]["status"] == "cancelled"
    assert client.engine.aborted == [stream.id]
    assert (len(client.kept), client.kept.num_bytes) == (0, 0)


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("background", [False, True])
async def test_a_client_that_goes_ends_its_response_unless_it_is_made_in_the_background(is_streamed, background):
    engine = FakeEngine(script(), held=True)
    app = await make_app(engine, reasoning_parser="think")
    kept = app.state.context.kept
    async with serving(app) as url, connected(url) as connection:
        await connection.post(PATH, {"input": "Hi", "stream": is_streamed, "background": background})
        await until(lambda: engine.requests)
        stream = kept.find(engine.requests[0].id, None)
        if is_streamed or not background:
            await until(lambda: stream.readers)
        engine.step(3)
        await until(lambda: stream.num_tokens == 3)
        await connection.close()
        await until(lambda: not stream.readers)
        if not background:
            await until(lambda: stream.is_over)
        engine.release()
        await until(lambda: stream.is_over)
    assert stream.state is (State.FINISHED if background else State.CANCELLED)


async def test_a_failure_before_the_first_token_is_a_status_for_the_client_that_waits():
    async with kept_client(Script(fail_after=0)) as client:
        for stream in (False, True):
            error = await client.error("POST", PATH, 500, json={"input": "Hi", "stream": stream})
            assert error["code"] == "engine_error"


async def test_the_input_is_listed_in_either_order_and_in_parts():
    given = [
        {"role": "user", "content": "Hi"},
        {"type": "message", "id": "msg_mine", "role": "assistant", "content": "Yes?"},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "12"},
        {"role": "user", "content": [{"type": "input_text", "text": "And?"}]},
    ]
    async with kept_client() as client:
        first = await client.create("Before.")
        body = await client.create(given, previous_response_id=first["id"])
        path = f"{PATH}/{body['id']}/input_items"
        listed = (await client.client.get(path, params={"order": "asc"})).json()
        items = listed["data"]
        assert [item["type"] for item in items] == ["message"] * 2 + [each["type"] for each in given[2:4]] + ["message"]
        assert (listed["object"], listed["has_more"]) == ("list", False)
        assert (listed["first_id"], listed["last_id"]) == (items[0]["id"], items[-1]["id"])
        assert items[1]["id"] == "msg_mine" and len({item["id"] for item in items}) == len(items)
        assert items[0]["content"] == [{"type": "input_text", "text": "Hi"}]
        assert items[1]["content"] == [{"type": "output_text", "text": "Yes?", "annotations": []}]
        newest = (await client.client.get(path, params={"limit": "2"})).json()
        assert (newest["data"], newest["has_more"]) == ([items[4], items[3]], True)
        rest = (await client.client.get(path, params={"after": newest["last_id"]})).json()
        assert (rest["data"], rest["has_more"]) == ([items[2], items[1], items[0]], False)
        none = (await client.client.get(path, params={"after": items[0]["id"]})).json()
        assert (none["data"], none["first_id"], none["last_id"]) == ([], None, None)


@pytest.mark.parametrize("order", ["asc", "desc"])
@pytest.mark.parametrize("limit", [1, 2, 3])
async def test_items_with_the_same_id_are_listed_once_each(order, limit):
    """An `after` names one place: else a client that reads part after part would never come to the end."""
    ids = ["msg_a", "msg_a", "msg_b", "msg_a", 7, {}, "", "x" * 300, None, "msg_b"]
    given = [{"role": "user", "content": str(number), "id": item_id} for number, item_id in enumerate(ids)]
    async with kept_client() as client:
        body = await client.create(given)
        found: list[dict[str, object]] = []
        query: dict[str, object] = {"order": order, "limit": limit}
        for _ in range(len(ids) // limit + 1):
            part = (await client.client.get(f"{PATH}/{body['id']}/input_items", params=query)).json()
            found += part["data"]
            if not part["has_more"]:
                break
            query["after"] = part["last_id"]
    texts = [item["content"][0]["text"] for item in found]
    assert texts == [each["content"] for each in given][:: 1 if order == "asc" else -1]
    assert len({item["id"] for item in found}) == len(found)
    assert found[0 if order == "asc" else -1]["id"] == "msg_a"


@pytest.mark.parametrize(
    ("end", "query", "param"),
    [
        ("", {"stream": "maybe"}, "stream"),
        ("", {"include_obfuscation": "x"}, "include_obfuscation"),
        ("", {"starting_after": "1"}, "starting_after"),
        ("", {"stream": "true", "starting_after": "-1"}, "starting_after"),
        ("", {"stream": "true", "starting_after": "1" * 10}, "starting_after"),
        ("", {"stream": "true", "starting_after": "٣"}, "starting_after"),
        ("", {"include": "everything"}, "include"),
        ("", {"include[]": "everything"}, "include"),
        ("/input_items", {"limit": "0"}, "limit"),
        ("/input_items", {"limit": "101"}, "limit"),
        ("/input_items", {"order": "up"}, "order"),
        ("/input_items", {"after": "msg_none"}, "after"),
        ("/input_items", {"include": "x"}, "include"),
    ],
)
async def test_a_wrong_query_is_an_error_that_names_its_parameter(end, query, param):
    async with kept_client() as client:
        body = await client.create()
        error = await client.error("GET", f"{PATH}/{body['id']}{end}", 400, params=query)
    assert (error["code"], error["param"]) == ("invalid_value", param)


async def test_a_response_is_no_stream_of_tokens_and_the_other_way_round():
    async with kept_client() as client:
        body = await client.create()
        for method in ("GET", "HEAD", "DELETE"):
            assert (await client.client.request(method, f"/v1/streams/{body['id']}")).status_code == 404
        chat = {"messages": [{"role": "user", "content": "Hi"}], "stream": True}
        answer = await client.client.post("/v1/chat/completions", json=chat, headers={"x-quire-resume": "1"})
        chat_id = answer.headers["x-quire-stream-id"]
        await client.error("GET", f"{PATH}/{chat_id}", 404)
        body = {"input": "Hi", "previous_response_id": chat_id}
        assert (await client.error("POST", PATH, 400, json=body))["code"] == "previous_response_not_found"


async def test_the_log_shows_eight_digits_of_the_id(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, ACCESS_LOGGER)
    async with kept_client() as client:
        response_id = (await client.create(background=True))["id"]
        for method, end in (("GET", ""), ("POST", "/cancel"), ("GET", "/input_items"), ("DELETE", "")):
            await client.client.request(method, f"{PATH}/{response_id}{end}")
    lines = [JsonFormatter().format(record) for record in caplog.records if record.name == ACCESS_LOGGER]
    paths = [json.loads(line)["path"] for line in lines]
    short = f"{PATH}/{response_id[:13]}"
    assert paths == [PATH, short, f"{short}/cancel", f"{short}/input_items", short]
    assert response_id not in "".join(lines)


async def test_a_kept_response_takes_about_the_memory_that_it_counts():
    """Tools that are left out, and the form of its text, are as many objects as their bytes hold."""
    async with kept_client(script("Yes.")) as client:
        hosted = [{"type": "web_search", "x": [{} for _ in range(10_000)]}]
        response = await client.create(tools=hosted)
        stream = client.kept.find(response["id"], None)
        asked = Resumable.of(stream).request.asked
        assert response["tools"] == hosted == (await client.get(stream.id)).json()["tools"]
        assert num_objects(asked.tools) + num_objects(asked.text) == 2


def num_objects(value: object) -> int:
    """The number of objects in a value."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return 1 + sum(map(num_objects, inner))
