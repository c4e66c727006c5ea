"""What a conversation goes on from: all that was sent and answered before, as if it were sent again."""

from __future__ import annotations

import threading

import pytest

from app.api.body.parse_request import MAX_SMALL_BYTES
from app.api.responses.kept import kept_items
from app.api.responses.kept.kept_items import Conversations, listed_items
from app.streaming.kept.live_stream import LiveStream
from tests.api.responses.kept.kept_client import PATH, TOOLS, kept_client, script
from tests.api.serving import until
from tests.fakes import Script
from tests.streaming.kept.live_kept import Kept


def prompts(client) -> list[tuple[int, ...]]:
    """The prompts of all requests so far."""
    return [request.prompt_token_ids for request in client.engine.requests]


async def test_the_prompt_of_a_turn_is_that_of_the_whole_conversation_sent_at_once():
    """With the reasoning, the calls and their results of the turns before."""
    async with kept_client() as client:
        first = await client.create("How warm?", tools=TOOLS)
        [call] = [item for item in first["output"] if item["type"] == "function_call"]
        result = {"type": "function_call_output", "call_id": call["call_id"], "output": "12"}
        second = await client.create([result], tools=TOOLS, previous_response_id=first["id"])
        third = await client.create("Thanks.", tools=TOOLS, previous_response_id=second["id"], instructions="Be brief.")
        whole = [{"role": "user", "content": "How warm?"}, *first["output"], result, *second["output"]]
        whole.append({"role": "user", "content": "Thanks."})
        await client.create(whole, tools=TOOLS, instructions="Be brief.", store=False)
        counted = await client.client.post(
            f"{PATH}/input_tokens",
            json={
                "input": "Thanks.",
                "previous_response_id": second["id"],
                "tools": TOOLS,
                "instructions": "Be brief.",
            },
        )
        *_, by_id, at_once = prompts(client)
    assert by_id == at_once
    assert third["previous_response_id"] == second["id"]
    assert counted.json()["input_tokens"] == len(by_id)


async def test_of_earlier_inputs_only_what_is_read_makes_objects():
    """A conversation of large items that say nothing would take 25 times its JSON each time it goes on."""
    silent = {"type": "reasoning", "summary": [], "encrypted_content": [{}] * 10}
    call = {"type": "local_shell_call", "call_id": "c", "action": {"command": ["ls"]}, "id": "lsh_1", "x": [{}]}
    result = {"type": "local_shell_call_output", "id": "c", "output": "a file", "status": "completed"}
    search = {"type": "web_search_call", "action": [{}] * 10}
    async with kept_client(Script(answer=["Yes."])) as client:
        message = {"role": "user", "content": "How warm?", "x": [{}]}
        first = await client.create([message, silent, call, result, search])
        stream = client.kept.find(first["id"], None)
        *items, answer = Conversations(client.kept, None).items_of(first["id"])
        listed = listed_items(stream)
    assert items == [
        {"role": "user", "content": "How warm?"},
        {"type": "reasoning", "summary": []},
        {"type": "local_shell_call", "call_id": "c", "action": {"command": ["ls"]}},
        {"type": "local_shell_call_output", "id": "c", "output": "a file"},
        {"type": "web_search_call"},
    ]
    assert answer["type"] == "message"
    assert listed[1]["encrypted_content"] == [{}] * 10


async def test_instructions_are_not_inherited():
    async with kept_client(Script(answer=["Yes."])) as client:
        first = await client.create(instructions="Be long.")
        await client.create("And?", previous_response_id=first["id"])
        bare = await client.create()
        await client.create("And?", previous_response_id=bare["id"])
        _, with_id, _, without = prompts(client)
    assert with_id == without


async def test_a_conversation_may_go_on_without_an_input_of_its_own():
    async with kept_client(Script(answer=["Yes."])) as client:
        first = await client.create()
        assert (await client.create(None, previous_response_id=first["id"]))["status"] == "completed"


@pytest.mark.parametrize("end", ["incomplete", "cancelled"])
async def test_what_was_cut_or_cancelled_may_be_gone_on_from_with_what_it_has(end):
    async with kept_client(held=True) as client:
        stream = await client.running(**({"max_output_tokens": 5} if end == "incomplete" else {}))
        await client.step(5)
        if end == "cancelled":
            await client.client.post(f"{PATH}/{stream.id}/cancel")
        await until(lambda: stream.is_over)
        kept = (await client.get(stream.id)).json()
        client.engine.release()
        await client.create("Go on.", previous_response_id=stream.id)
        await client.create(
            [{"role": "user", "content": "Hi"}, *kept["output"], {"role": "user", "content": "Go on."}], store=False
        )
        _, by_id, at_once = prompts(client)
    assert kept["status"] == end and kept["output"]
    assert by_id == at_once


async def test_a_response_that_runs_or_has_failed_is_not_gone_on_from():
    async with kept_client(Script(answer=["a", "b", "c"], fail_after=2), held=True) as client:
        stream = await client.running()
        body = {"input": "Hi", "previous_response_id": stream.id}
        running = await client.error("POST", PATH, 409, json=body)
        client.engine.release()
        await until(lambda: stream.is_over)
        failed = await client.error("POST", PATH, 400, json=body)
    assert (running["code"], running["param"]) == ("response_in_progress", "previous_response_id")
    assert (failed["code"], failed["param"]) == ("invalid_value", "previous_response_id")


async def test_a_conversation_has_a_bound_of_responses_of_items_and_of_bytes(monkeypatch):
    async with kept_client(Script(answer=["a"])) as client:
        last = await client.create()
        for _ in range(3):
            last = await client.create("And?", previous_response_id=last["id"])
        body = {"input": "And?", "previous_response_id": last["id"]}
        conversation = Conversations(client.kept, None).streams_to(last["id"])
        num_bytes = sum(len(asked.own_items) for asked in map(kept_items.asked_of, conversation) if asked)
        for name, bound in (("MAX_HOPS", 4), ("MAX_ITEMS", 8), ("MAX_CONVERSATION_BYTES", num_bytes)):
            with monkeypatch.context() as patch:
                patch.setattr(kept_items, name, bound)
                assert (await client.client.post(PATH, json={**body, "store": False})).status_code == 200
                patch.setattr(kept_items, name, bound - 1)
                error = await client.error("POST", PATH, 400, json=body)
                assert (error["code"], error["param"]) == ("invalid_value", "previous_response_id")


def test_the_longest_conversation_is_kept_whole():
    """With the default of --resume-memory: else one of its own responses would be the oldest that goes."""
    kept = Kept(2**26)
    for number in range(kept_items.MAX_HOPS + 1):
        kept.ended(f"r{number}", "a")
    assert all(kept.has(f"r{number}", "a") for number in range(kept_items.MAX_HOPS + 1))


async def test_a_conversation_that_goes_on_keeps_its_beginning():
    """Else what a client goes on from would expire, or be the oldest that goes, one hour after its first turn."""
    async with kept_client(script("Yes.")) as client:
        first = await client.create()
        other = await client.create()
        await client.create("And?", previous_response_id=first["id"])
        assert [*client.kept._idle][:1] == [other["id"]]


@pytest.mark.parametrize("store", [True, False])
async def test_going_on_from_a_long_conversation_touches_one_response(store, monkeypatch):
    """Those before it stay as long as it does: to touch each would keep the loop for milliseconds."""
    touched: list[str] = []
    async with kept_client(Script(answer=["a"])) as client:
        ids = [(await client.create())["id"]]
        for _ in range(4):
            ids.append((await client.create("And?", previous_response_id=ids[-1]))["id"])
        touch = client.kept.touch
        monkeypatch.setattr(client.kept, "touch", lambda stream: (touched.append(stream.id), touch(stream)))
        await client.create("And?", previous_response_id=ids[-1], store=store)
        assert touched == [ids[-1]]
        for response_id in ids[:-1]:
            del client.kept._timers[response_id]  # its own time is over
        assert (await client.create("And?", previous_response_id=ids[-1]))["status"] == "completed"


async def test_a_short_body_that_goes_on_from_a_long_conversation_is_read_as_a_long_one(monkeypatch):
    """Else a few of them would occupy the threads on which other clients' short bodies are read."""
    threads: list[str] = []
    read = kept_items._items_of

    def noting(stream: LiveStream) -> list[object]:
        threads.append(threading.current_thread().name)
        return read(stream)

    monkeypatch.setattr(kept_items, "_items_of", noting)
    async with kept_client(Script(answer=["a"])) as client:
        silent = {"type": "reasoning", "summary": [], "encrypted_content": "a" * MAX_SMALL_BYTES}
        short, long = await client.create(), await client.create([silent, {"role": "user", "content": "Hi"}])
        for response in (short, long):
            await client.create("And?", previous_response_id=response["id"])
    assert [name.startswith("quire-long-text") for name in threads] == [False, True]
