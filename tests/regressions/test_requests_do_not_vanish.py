"""However a request ends, one line of the log says how; and a server that does not get on says so by itself.

Others: syv-ai/qwen38-27b-rtx3090#94 (requests leave without a line, client aborts are not logged by default),
llama.cpp#27388 (the server hangs, /health says that all is well). Clients that hang up in the queue, in the prompt and
in the answer: test_abort_leaks.py.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx

from app.client.client import connect
from tests.api.serving import until
from tests.checkpoints import tiny
from tests.engine.poison import Poison
from tests.regressions.whole import Paced, Whole, cancelled, completion, whole_server
from tests.server.processes import HANG_S, serving

POISONED = tuple(range(200, 220))
MESSAGES = [{"role": "user", "content": "the quick brown fox"}]
EOS_FIRST = {"ignore_eos": False, "logit_bias": {"1": 100}}
# By the id of the request: the body of a completion, and the status and the reason in its line.
ENDINGS: dict[str, tuple[dict[str, Any], int, str]] = {
    "length": ({"max_tokens": 4}, 200, "length"),
    "stop": (EOS_FIRST, 200, "stop"),
    "streamed": ({"max_tokens": 4, "stream": True}, 200, "length"),
    "invalid": ({"max_tokens": 0}, 400, "invalid_value"),
    "unknown-model": ({"model": "another"}, 404, "model_not_found"),
    "too-long": ({"max_tokens": 1000}, 400, "context_length_exceeded"),
    "too-large": ({"max_tokens": 400}, 400, "kv_capacity_exceeded"),
    "never-started": ({"queue_timeout": 1e-9}, 504, "queue_timeout"),
    "too-late": ({"timeout": 1e-6}, 504, "deadline_exceeded"),
    "failed": ({"prompt": list(POISONED)}, 500, "engine_error"),
    "failed-stream": ({"prompt": list(POISONED), "stream": True}, 500, "engine_error"),
}
NUM_REFUSED = sum(1 for _, status, _ in ENDINGS.values() if 400 <= status < 500)


async def ask(whole: Whole, name: str, **body: Any) -> int:
    """Send a completion under a request id, read its answer to the end, and return the status."""
    answer = await whole.client.post("/v1/completions", json=completion(**body), headers={"x-request-id": name})
    return answer.status_code


async def num_ended(whole: Whole) -> float:
    """How many requests of one choice the metrics know to have ended."""
    succeeded = await whole.metric("vllm:request_success_total")
    return succeeded + await whole.metric("quire_requests_aborted_total")


async def test_every_ending_leaves_one_line_with_its_reason_and_is_counted_once(caplog):
    paced = Paced(10_000)
    paced.before_sample = Poison({POISONED: 0}).before_sample
    async with whole_server(paced, num_kv_blocks=16) as whole:
        statuses = await asyncio.gather(*(ask(whole, name, **body) for name, (body, _, _) in ENDINGS.items()))
        assert statuses == [status for _, status, _ in ENDINGS.values()]
        for name, (_, status, reason) in ENDINGS.items():
            (line,) = whole.lines_of(name)
            assert (line["status"], line["reason"]) == (status, reason)
        assert await num_ended(whole) == len(ENDINGS) - NUM_REFUSED


async def test_answers_that_are_cut_in_the_middle_leave_one_line_each():
    """By the deadline, by going away, by a cancel; and who finds the queue full."""
    paced = Paced()
    async with whole_server(paced, max_num_seqs=1, max_queue=1) as whole, asyncio.timeout(HANG_S):
        late = asyncio.create_task(ask(whole, "late", max_tokens=400, timeout=1000, stream=True))
        await until(lambda: len(whole.engine._open) == 1)
        gone = asyncio.create_task(ask(whole, "gone", max_tokens=400))
        await until(lambda: len(whole.engine._open) == 2)
        assert await ask(whole, "overloaded") == 503
        paced.allow(4)
        await whole.at_step(4)
        await cancelled(gone)
        await until(lambda: whole.lines_of("gone"))
        whole.clock.leap(1000)
        paced.allow()
        assert await late == 200
        await whole.at_rest()
        async with connect(whole.url) as client:
            stream = await client.chat(MESSAGES, max_tokens=400, ignore_eos=True)
            async for _ in stream.events():
                await stream.cancel()
            paced.hold()
            await client.chat(MESSAGES, max_tokens=400, ignore_eos=True)
            await until(lambda: whole.engine._open)
        paced.allow()
        await whole.at_rest()
        await until(lambda: len(whole.log.records) == 6)
        (by_deadline,), (by_leaving,), (refused,) = map(whole.lines_of, ("late", "gone", "overloaded"))
        assert (by_deadline["reason"], by_deadline["completion_tokens"]) == ("deadline_exceeded", 5)
        assert (by_leaving["reason"], refused["reason"]) == ("client_disconnected", "overloaded")
        streams = [line["reason"] for line in whole.log.records if line["method"] == "START"]
        assert streams == ["cancelled", "client_disconnected"]
        assert await num_ended(whole) == 4


async def test_readiness_follows_the_engines_progress():
    """A step that hangs: /livez leaves that to the watchdog, /readyz and /health tell the balancer at once."""
    paced = Paced()
    async with whole_server(paced, watchdog_timeout=0.2) as whole:

        async def statuses() -> list[int]:
            return [(await whole.client.get(path)).status_code for path in ("/livez", "/readyz", "/health")]

        assert await statuses() == [200, 200, 200]
        asking = asyncio.create_task(ask(whole, "me", max_tokens=4))
        async with asyncio.timeout(HANG_S):
            while await statuses() != [200, 503, 503]:
                pass
        paced.allow()
        assert await asking == 200
        assert await statuses() == [200, 200, 200]


def test_a_server_as_it_is_started_writes_the_lines_to_stderr(tmp_path: Path):
    """Without any option, for aborts too."""
    log = tmp_path / "stderr"
    with log.open("w") as file, serving(str(tiny("Llama")), stderr=file) as server:
        server.wait_until_ready()
        with httpx.Client(base_url=server.url, timeout=HANG_S) as client:
            for name, body in {"done": {"max_tokens": 2}, "refused": {"max_tokens": 0}}.items():
                client.post("/v1/completions", json=completion(**body), headers={"x-request-id": name})
            long = completion(max_tokens=490, stream=True)
            with client.stream("POST", "/v1/completions", json=long, headers={"x-request-id": "left"}) as response:
                next(response.iter_lines())
        server.process.terminate()
        assert server.end() == 0
    lines = [json.loads(line) for line in log.read_text().splitlines() if '"quire.access"' in line]
    found = [(line["request_id"], line["reason"]) for line in lines if line["path"] == "/v1/completions"]
    assert found == [("done", "length"), ("refused", "invalid_value"), ("left", "client_disconnected")]
