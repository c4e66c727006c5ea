"""Kept answers of an earlier process: whose they are, of which model, and how often they are begun again."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from app.api.body import parse_request
from app.api.body.answer_journal import AnswerJournal
from app.contract import model_print
from app.contract.brownout_effects import MAX_LEVEL, effects
from app.contract.engine_status import ModelInfo
from app.journal.store import Changes, JournalStore
from app.streaming.kept.journaling import Journaling
from tests.api.resuming import RESUME, events_of, told
from tests.api.serving import until
from tests.checkpoints import tiny
from tests.journal.killed_journal import killed
from tests.regressions.running_server import RunningServer, StepGate, completion, run_server
from tests.streaming.kept.recorded_deltas import deltas_of

PATH = "/v1/completions"
KEYED = {"idempotency-key": "a-key"}


@pytest.fixture
def journal(tmp_path: Path) -> str:
    return str(tmp_path / "journal")


def key(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {name}"}


async def finished(server: RunningServer, headers: dict[str, str] | None = None, **body: Any) -> str:
    """Read a resumable answer to its end, and return its path."""
    sent = completion(stream=True, **body)
    response = await server.client.post(PATH, json=sent, headers={**RESUME, **(headers or {})})
    assert response.status_code == 200, response.text
    return f"/v1/streams/{response.headers['x-quire-stream-id']}"


async def unfinished(server: RunningServer, gate: StepGate, **body: Any) -> str:
    """Begin a resumable answer, read its first token, and leave it; return its path."""
    gate.allow(3)
    request = completion(**{"stream": True, "max_tokens": 60, **body})
    async with server.client.stream("POST", PATH, json=request, headers=RESUME) as response:
        assert await anext(response.aiter_text())
    return f"/v1/streams/{response.headers['x-quire-stream-id']}"


async def position_of(server: RunningServer, path: str) -> int:
    return int((await server.client.head(path)).headers["x-quire-position"])


async def told_upto(server: RunningServer, path: str, position: int) -> None:
    while await position_of(server, path) < position:
        pass


async def state_of(server: RunningServer, path: str, **headers: str) -> str:
    response = await server.client.head(path, headers=headers)
    return response.headers.get("x-quire-state", str(response.status_code))


async def text_of(server: RunningServer, path: str) -> str:
    response = await server.client.get(path)
    assert response.status_code == 200, response.text
    return told(events_of(response.text))["choices"][0]["text"]


async def test_an_answer_belongs_to_its_key_wherever_that_stands_in_the_list(journal: str):
    async with run_server(journal=journal, api_key=("first", "second")) as server:
        path = await finished(server, key("second"))
        assert await state_of(server, path, **key("first")) == "404"
    async with run_server(journal=journal, api_key=("second", "third")) as server:
        assert await state_of(server, path, **key("second")) == "finished"
        assert await state_of(server, path, **key("third")) == "404"
    async with run_server(journal=journal, api_key=("third",)) as server:
        assert await state_of(server, path, **key("third")) == "404"
        assert await server_count(server, "dropped", **key("third")) == 1
    async with run_server(journal=journal, api_key=("second",)) as server:
        assert await state_of(server, path, **key("second")) == "404", "it was dropped for good"


async def server_count(server: RunningServer, outcome: str, **headers: str) -> float:
    text = (await server.client.get("/metrics", headers=headers)).text
    (line,) = [line for line in text.splitlines() if "streams_restored" in line and f'outcome="{outcome}"' in line]
    return float(line.split()[-1])


async def test_another_model_tells_finished_answers_again_and_drops_unfinished_ones(
    journal: str, monkeypatch: pytest.MonkeyPatch
):
    gate = StepGate()
    async with run_server(gate, journal=journal) as server:
        begun = await unfinished(server, gate)
        gate.allow()
        ended = await finished(server)
        text = await text_of(server, ended)
        await text_of(server, begun)
        await server.wait_until_idle()
        gate.hold()
        begun = await unfinished(server, gate)
        left = killed(journal)
    monkeypatch.setattr(model_print, "__version__", "another")
    async with run_server(journal=left) as server:
        assert await text_of(server, ended) == text
        assert await state_of(server, begun) == "404"


@pytest.mark.parametrize("folder", ["the same", "another"])
async def test_a_finished_answer_is_told_again_by_a_model_of_another_name(
    journal: str, caplog: pytest.LogCaptureFixture, folder: str
):
    """Text alone, whatever the model; tokens only by a model that reads them as the first one did."""
    async with run_server(journal=journal, served_model_name="first") as server:
        plain, scored = [await finished(server, model="first", **body) for body in ({}, {"logprobs": 1})]
        before = {path: (await server.client.get(path)).text for path in (plain, scored)}
    other = tiny("Qwen3") if folder == "another" else None
    async with run_server(folder=other, journal=journal, served_model_name="second") as server:
        assert (await server.client.get(plain)).text == before[plain]
        again = await server.client.get(scored)
        assert again.status_code == (404 if other else 200)
        assert other or again.text == before[scored]
    assert ("It is of another model" in caplog.text) == bool(other)


async def test_an_idempotency_key_is_known_after_a_restart(journal: str):
    async with run_server(journal=journal, api_key=("one",)) as server:
        first = await server.client.post(PATH, json=completion(), headers={**key("one"), **KEYED})
    async with run_server(journal=journal, api_key=("one",)) as server:
        again = await server.client.post(PATH, json=completion(), headers={**key("one"), **KEYED})
        assert again.headers["idempotent-replayed"] == "true"
        assert again.json() == first.json()
        other = await server.client.post(PATH, json=completion(max_tokens=3), headers={**key("one"), **KEYED})
        assert other.status_code == 409


async def test_a_restored_answer_goes_on_at_once_for_a_reader_that_waits_for_the_model(journal: str):
    gate = StepGate()
    async with run_server(gate, journal=journal) as server:
        path = await unfinished(server, gate)
        left = killed(journal)
    async with run_server(journal=left) as server:
        whole = (await server.complete(max_tokens=60)).json()["choices"][0]["text"]
        assert await text_of(server, path) == whole
        assert await server_count(server, "continued") == 1
    async with run_server(journal=left) as server:
        assert await text_of(server, path) == whole
        assert await server_count(server, "replayed") == 1


async def test_a_restored_answer_computes_what_was_told_as_a_prompt(journal: str):
    gate = StepGate()
    async with run_server(gate, journal=journal) as server:
        path = await unfinished(server, gate, max_tokens=200)
        gate.allow(150)
        await until(lambda: server.engine.stats().step >= 150)
        await told_upto(server, path, 140)
        left = killed(journal)
        gate.allow()
    async with run_server(journal=left) as server:
        text = await text_of(server, path)
        assert server.engine.stats().step < 200 - 140 + 10
        assert text == (await server.complete(max_tokens=200)).json()["choices"][0]["text"]


def came_earlier(journal: str, seconds: float, attempts: int = 0) -> None:
    """Let the answers of a journal have come so much earlier, and the last one have been begun again so often."""
    store = JournalStore(Path(journal))
    stored = store.take_stored()
    store.commit(Changes(forgotten={one.no for one in stored}))
    heads = {one.no: msgspec.structs.replace(one.head, arrived=one.head.arrived - seconds) for one in stored}
    told = {one.no: one.told for one in stored}
    store.commit(Changes(begun=heads, written=told, attempts={stored[-1].no: attempts}))
    store.close()


async def test_a_restored_answer_ends_when_it_was_to_end(journal: str):
    gate = StepGate()
    async with run_server(gate, journal=journal) as server:
        path = await unfinished(server, gate, timeout=1000)
        left = killed(journal)
    came_earlier(left, 900)
    gate = StepGate()
    async with run_server(gate, journal=left) as server:
        position = await position_of(server, path)
        gate.allow(5)
        await told_upto(server, path, position + 2)
        server.clock.skip(100)
        gate.allow(5)
        await until_over(server, path)
        text = (await server.client.get(path)).text
        assert "deadline_exceeded" in text and "the limit of the request is 1000.0 s" in text


async def test_a_restored_answer_may_have_waited_for_any_time(journal: str):
    gate = StepGate()
    async with run_server(gate, journal=journal) as server:
        path = await unfinished(server, gate, queue_timeout=30)
        left = killed(journal)
    came_earlier(left, 31)
    async with run_server(journal=left) as server:
        await until_over(server, path)
        assert await state_of(server, path) == "finished"


async def test_an_answer_that_waits_for_others_ends_when_it_was_to_end(journal: str):
    gate = StepGate()
    async with run_server(gate, journal=journal) as server:
        other, path = await unfinished(server, gate, max_tokens=300), await unfinished(server, gate, timeout=1000)
        left = killed(journal)
    came_earlier(left, 1000, attempts=2)
    gate = StepGate()
    async with run_server(gate, journal=left) as server:
        while await state_of(server, path) == "running":
            gate.allow(1)
            await asyncio.sleep(0.01)
        assert await state_of(server, path) == "failed"
        assert await state_of(server, other) == "running"


async def test_each_token_of_a_restored_answer_is_counted_once_and_none_of_its_times(journal: str):
    gate = StepGate()
    async with run_server(gate, journal=journal) as server:
        path = await unfinished(server, gate)
        left = killed(journal)
    store = JournalStore(Path(left))
    num_told = sum(len(delta.token_ids) for one in store.take_stored() for delta in deltas_of(one.told))
    store.close()
    async with run_server(journal=left) as server:
        await text_of(server, path)
        await server.wait_until_idle()
        assert num_told and await server.metric("vllm:generation_tokens_total") == 60 - num_told
        assert await server.metric("vllm:request_success_total") == 1
        assert await server.metric("vllm:time_to_first_token_seconds_count") == 0
        await server.complete()
        assert await server.metric("vllm:time_to_first_token_seconds_count") == 1


async def test_a_restored_answer_is_as_long_as_it_was_to_be(journal: str, monkeypatch: pytest.MonkeyPatch):
    """Without max_tokens the length is the server's, and it depends on the load."""
    gate = StepGate()
    with monkeypatch.context() as patched:
        patched.setattr(parse_request, "effects", lambda _: effects(MAX_LEVEL))
        async with run_server(gate, journal=journal) as server:
            path = await unfinished(server, gate, max_tokens=-1)
            left = killed(journal)
            gate.allow()
    async with run_server(journal=left) as server:
        await until_over(server, path)
        assert await position_of(server, path) == effects(MAX_LEVEL).default_max_tokens


@pytest.mark.parametrize("attempts", [2, 3])
async def test_an_answer_that_was_begun_too_often_fails(journal: str, attempts: int):
    gate = StepGate()
    async with run_server(gate, journal=journal) as server:
        path = await unfinished(server, gate)
        other = await unfinished(server, gate)
        left = killed(journal)
    store = JournalStore(Path(left))
    [first, _] = store.take_stored()
    store.commit(Changes(attempts={first.no: attempts}))
    store.close()
    async with run_server(journal=left) as server:
        await until_over(server, path)
        await until_over(server, other)
        assert await state_of(server, other) == "finished"
        assert await state_of(server, path) == ("failed" if attempts == 3 else "finished")


async def until_over(server: RunningServer, path: str) -> None:
    response: httpx.Response | None = None
    while response is None or response.headers["x-quire-state"] == "running":
        response = await server.client.head(path)
    await until(lambda: not server.num_open)


async def test_a_cancel_is_recorded_before_it_is_answered(journal: str):
    gate = StepGate()
    async with run_server(gate, journal=journal) as server:
        path = await unfinished(server, gate)
        assert (await server.client.delete(path)).status_code == 204
        left = killed(journal)
    async with run_server(journal=left) as server:
        assert await state_of(server, path) == "cancelled"


async def test_a_cancel_that_cannot_be_recorded_any_more_is_not_answered_as_one(
    journal: str, monkeypatch: pytest.MonkeyPatch
):
    journals: list[Journaling] = []
    start = Journaling.start
    monkeypatch.setattr(Journaling, "start", lambda self: (journals.append(self), start(self)))
    gate = StepGate()
    async with run_server(gate, journal=journal) as server:
        path = await unfinished(server, gate)
        await journals[0].close()
        assert (await server.client.delete(path)).status_code == 503
        gate.allow()
    async with run_server(journal=journal) as server:
        await until_over(server, path)
        assert await state_of(server, path) == "finished"


async def test_two_answers_that_may_end_the_process_run_one_after_the_other(journal: str):
    gate = StepGate()
    async with run_server(gate, journal=journal) as server:
        paths = [await unfinished(server, gate) for _ in range(2)]
        left = killed(journal)
    store = JournalStore(Path(left))
    store.commit(Changes(attempts={one.no: 2 for one in store.take_stored()}))
    store.close()
    async with run_server(journal=left) as server:
        for path in paths:
            await until_over(server, path)
            assert await state_of(server, path) == "finished"


async def test_an_answer_that_cannot_be_read_holds_up_no_others(journal: str, caplog: pytest.LogCaptureFixture):
    async with run_server(journal=journal) as server:
        paths = [await finished(server) for _ in range(2)]
    store = JournalStore(Path(journal))
    bad, _ = store.take_stored()
    store.commit(Changes(forgotten={bad.no}))
    head = msgspec.structs.replace(bad.head, seeds=(1, 2, 3))
    store.commit(Changes(begun={bad.no: head}, written={bad.no: bad.told}))
    store.close()
    async with run_server(journal=journal) as server:
        assert [await state_of(server, path) for path in paths] == ["404", "finished"]
        assert await server_count(server, "dropped") == 1
    assert "cannot go on after the restart" in caplog.text


async def test_an_answer_for_which_there_is_no_room_any_more_is_dropped_from_the_file(journal: str):
    async with run_server(journal=journal) as server:
        path = await finished(server)
    async with run_server(journal=journal, resume_memory=6_060) as server:
        assert await state_of(server, path) == "404"
        assert await server_count(server, "dropped") == 1
    store = JournalStore(Path(journal))
    assert store.num_stored == 0
    store.close()


async def test_a_reader_that_waits_is_not_told_that_its_answer_is_gone_when_the_server_ends(
    journal: str, monkeypatch: pytest.MonkeyPatch
):
    async with run_server(journal=journal) as server:
        path = await finished(server)
    restoring: asyncio.Queue[AnswerJournal] = asyncio.Queue()

    async def wait(journal: AnswerJournal) -> ModelInfo:
        restoring.put_nowait(journal)
        return await asyncio.Event().wait()

    monkeypatch.setattr(AnswerJournal, "_model_info", wait)
    async with run_server(journal=journal) as server:
        reading = asyncio.create_task(server.client.get(path))
        await (await restoring.get()).close()
        assert (await reading).status_code == 503
