"""Several requests as one session: numbering, fairness of reading, ends and failures."""

import asyncio
import contextlib

import pytest

from app.config.settings import make_config
from app.contract.engine_status import EngineState
from app.contract.errors import ModelLoading, Overloaded
from app.contract.events import ChoiceEnd, Finished, FinishReason, PromptScored, Timings, TokenDelta, Usage
from app.contract.requests import Submit
from app.streaming.flow.mailbox import Mailbox
from app.streaming.session_group import SessionGroup
from app.streaming.streams import Streams
from tests.fake_port import scores_of
from tests.fakes import FakeEngine, make_request, text_of, turn_loop

PROMPTS = [(1, 2, 3), (4, 5), (6,)]


def group_of(engine, streams=None, **params):
    requests = [make_request(f"r-{index}", prompt=prompt, **params) for index, prompt in enumerate(PROMPTS)]
    return SessionGroup(engine, requests, streams=streams)


async def test_stop_reasons_have_the_numbers_of_the_answers_choices():
    async with group_of(FakeEngine(), n=2) as group:
        for session, reason in zip(group._sessions, ("x", 7, None), strict=True):
            session._note(Finished("r", 1, ChoiceEnd(FinishReason.STOP, reason), Usage(1, 1), Timings(0, 0, 0)))
        assert [group.ends[choice].stop_reason for choice in (1, 3, 5)] == ["x", 7, None]


async def test_choices_of_all_requests_are_numbered_and_complete():
    texts: dict[int, str] = {}
    async with group_of(FakeEngine(), n=2) as group:
        async for events in group:
            for event in events:
                if isinstance(event, TokenDelta):
                    texts[event.choice] = texts.get(event.choice, "") + event.text
    assert texts == {
        index * 2 + choice: text_of(prompt, 8, choice) for index, prompt in enumerate(PROMPTS) for choice in range(2)
    }
    assert group.is_finished and sorted(group.ends) == [*range(6)]
    assert (group.num_choices, group.num_prompt_tokens, group.num_tokens) == (6, 6, 48)
    assert group.usage is not None
    assert (group.usage.prompt_tokens, group.usage.completion_tokens, group.end_reason) == (6, 48, "length")


@pytest.mark.parametrize("is_loaded", [True, False])
async def test_what_the_requests_need_is_released_when_the_group_is_closed(is_loaded):
    engine, released = FakeEngine(held=True), []
    engine.port.state = EngineState.READY if is_loaded else EngineState.LOADING
    group = SessionGroup(engine, [make_request()], release=lambda: released.append(True))
    with contextlib.suppress(ModelLoading):
        async with group:
            assert is_loaded and not released
    assert released


async def test_each_request_has_a_turn_in_every_receive():
    engine = FakeEngine(held=True)
    async with group_of(engine) as group:
        engine.step(3)
        await turn_loop()
        events = await group.receive()
        assert [event.choice for event in events if isinstance(event, TokenDelta)] == [0, 1, 2]
        assert [len(event.token_ids) for event in events if isinstance(event, TokenDelta)] == [3, 3, 3]


async def test_a_reader_that_does_not_return_pauses_every_request_and_one_that_does_resumes_them():
    engine = FakeEngine(held=True)
    async with group_of(engine, max_tokens=400) as group:
        engine.step(100)
        await turn_loop()
        await group.receive()  # what is handed over counts until the reader returns
        for _ in range(100):
            engine.step()
            await turn_loop(2)
        assert engine.port.num_paused == 3
        await group.receive()
        group.wake()
        assert await group.receive() == []
        engine.step()
        assert engine.port.num_paused == 0


async def test_receive_waits_and_is_cancel_safe():
    engine = FakeEngine(held=True)
    async with group_of(engine) as group:
        waiting = asyncio.create_task(group.receive())
        await turn_loop()
        assert not waiting.done()
        waiting.cancel()
        await turn_loop()
        engine.step()
        await turn_loop()
        assert len(await group.receive()) == 3


async def test_ends_keep_their_numbers():
    async with group_of(FakeEngine(), max_tokens=1) as group:
        ends = [event.choice async for events in group for event in events if isinstance(event, Finished)]
    assert sorted(ends) == [0, 1, 2]


async def test_a_failed_request_ends_the_group_and_leaving_it_aborts_the_others():
    engine = FakeEngine(held=True)
    async with group_of(engine) as group:
        engine.step()
        await turn_loop()
        engine.port.fail("r-1")
        await turn_loop()
        while not group.is_finished:
            await group.receive()
        assert group.failure is not None and group.failure.code == "engine_error"
        engine.step()
        await turn_loop()
        assert await group.receive() == []
    assert sorted(set(engine.aborted)) == ["r-0", "r-2"]


async def test_the_engine_accepts_all_requests_or_none():
    config = make_config({"max_queue": 2, "max_num_seqs": 1})
    engine, streams = FakeEngine(config=config, held=True), Streams()
    engine.submit(*submission_of("other"))
    group = group_of(engine, streams)
    with pytest.raises(Overloaded):
        group.open()
    group.close()
    assert [one.request.id for one in engine.port.posted if isinstance(one, Submit)] == ["other"]
    assert (engine.aborted, streams.num_open) == ([], 0)


def submission_of(name):
    return make_request(name), Mailbox()


async def test_the_scores_of_a_prompt_have_its_first_choice_and_come_before_its_tokens():
    found, begun = {}, set()
    async with group_of(FakeEngine(), n=2, prompt_logprobs=3) as group:
        async for events in group:
            for event in events:
                if isinstance(event, TokenDelta):
                    begun.add(event.choice // 2 * 2)
                elif isinstance(event, PromptScored):
                    assert event.choice not in begun
                    found[event.choice] = event.logprobs
    assert found == {index * 2: scores_of(prompt, 3) for index, prompt in enumerate(PROMPTS)}
