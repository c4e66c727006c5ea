"""A bad request fails alone: other requests lose no token.

Others: vllm#52693 (a request whose first token is EOS crashes the engine; nine crashes), vllm#15483 (a request at the
wrong moment crashes it). Faults at every step, and the search for the culprit: tests/engine/test_recovery.py,
tests/chaos/test_every_step.py. Requests while the model loads or the server drains: tests/api/body/test_rejections.py.
"""

from __future__ import annotations

import asyncio
from typing import Any

from app.contract.events import Finished
from tests.checkpoints import tiny
from tests.engine.culprits import Culprits
from tests.engine.driving import Run, build, request
from tests.regressions.running_server import RunningServer, run_server

NUM_CHATS = 6
NUM_TURNS = 5
END_AT_ONCE = {"logit_bias": {"1": 100}}
"""EOS is sampled first: an output of no tokens."""
CULPRIT = tuple(range(200, 220))
EXTREMES: list[dict[str, Any]] = [
    {"temperature": 2.0, "top_k": 1},
    {"temperature": 1e-30},
    {"temperature": 2.0, "top_p": 1e-9},
    {"temperature": 1.0, "min_p": 1.0},
    {"temperature": 1.0, "repetition_penalty": 0.01, "presence_penalty": -2.0, "frequency_penalty": -2.0},
    {"temperature": 1.0, "repetition_penalty": 10.0, "presence_penalty": 2.0, "frequency_penalty": 2.0},
    {"logit_bias": dict.fromkeys(range(300), -100.0)},
    {"logit_bias": dict.fromkeys(range(300), 100.0), "ignore_eos": False, "min_tokens": 20},
    {"max_tokens": 1, "logprobs": 20},
    {"stop": ["a", "\ufffd", "\U0001f642", " " * 64]},
    {"seed": -(2**63), "temperature": 1.0, "n": 4},
    {"seed": 2**64 - 1, "temperature": 1.0, "n": 2, "best_of": 4},
    {"temperature": None, "use_beam_search": True, "beam_width": 5, "length_penalty": -10.0},
]


async def converse(server: RunningServer, chat: int) -> list[str]:
    """Run a conversation in which every other output has no tokens; return its outputs."""
    messages: list[dict[str, str]] = []
    for turn in range(NUM_TURNS):
        messages.append({"role": "user", "content": f"question {turn} of chat {chat}"})
        body = {"messages": messages, "max_tokens": 6, "temperature": 1.0, "seed": chat, "n": 1 + chat % 2}
        body |= END_AT_ONCE if turn % 2 else {"ignore_eos": True}
        answer = (await server.client.post("/v1/chat/completions", json=body)).json()
        choices = answer["choices"]
        assert [choice["finish_reason"] for choice in choices] == ["stop" if turn % 2 else "length"] * body["n"]
        messages.append(choices[0]["message"])
    return [message["content"] for message in messages[1::2]]


async def test_an_empty_output_is_a_normal_output():
    async with run_server(max_num_seqs=4, num_kv_blocks=48) as server:
        alone = [await converse(server, chat) for chat in range(NUM_CHATS)]
        together = await asyncio.gather(*(converse(server, chat) for chat in range(NUM_CHATS)))
        assert together == alone
        assert all(answers[1] == answers[3] == "" and all(answers[::2]) for answers in alone)
        assert (await server.client.get("/readyz")).status_code == 200
        assert await server.metric("quire_faults_total") == 0
        stats = server.engine.stats()
        assert stats.blocks.num_free == stats.blocks.num_blocks


async def test_a_request_that_breaks_every_step_fails_alone(caplog):
    """Over HTTP: other streams have the same tokens as without it, and the server keeps serving."""
    bodies = [{"prompt": list(range(10 + i, 40 + i)), "max_tokens": 24, "stream": True} for i in range(7)]
    culprits = Culprits({CULPRIT: len(CULPRIT) + 5})
    async with run_server(culprits) as server:
        expected = [await server.streamed(**body) for body in bodies]
        bad = server.complete(prompt=list(CULPRIT), max_tokens=24)
        answer, *found = await asyncio.gather(bad, *(server.streamed(**body) for body in bodies))
        assert (answer.status_code, answer.json()["error"]["code"]) == (500, "engine_error")
        assert [text_of(events) for events in found] == [text_of(events) for events in expected]
        assert culprits.num_raised > 1
        assert (await server.client.get("/readyz")).status_code == 200
        assert text_of(await server.streamed(**bodies[0])) == text_of(expected[0])
        assert await server.metric("quire_requests_poisoned_total") == 1


def text_of(events: list[dict[str, Any]]) -> str:
    """The text of a stream, which must end by length."""
    assert events[-1]["choices"][0]["finish_reason"] == "length"
    return "".join(event["choices"][0]["text"] for event in events)


def test_extreme_parameters_do_not_change_other_requests_of_the_batch():
    built = build(tiny("Llama"))
    plain = {"prompt": list(range(20, 60)), "max_tokens": 30}
    alone = Run(built)
    alone.add(request(built, "plain", **plain))
    alone.finish()
    run = Run(built)
    run.add(request(built, "plain", **plain))
    for number, params in enumerate(EXTREMES):
        run.add(request(built, str(number), list(range(30 + number, 40 + number)), **{"max_tokens": 20, **params}))
    run.finish()
    ends = [event for event in run.events if isinstance(event, Finished)]
    assert len(ends) == 1 + sum(params.get("n", 1) for params in EXTREMES)
    assert run.tokens("plain") == alone.tokens("plain")
    assert built.stats().recovery.num_faults == 0
