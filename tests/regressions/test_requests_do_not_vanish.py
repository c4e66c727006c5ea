"""Every end of a request is logged once with its reason; a server that makes no progress reports it.

Others: syv-ai/qwen38-27b-rtx3090#94 (requests end without a log line, client aborts are not logged by default),
llama.cpp#27388 (the server hangs, /health returns 200). Disconnects in the queue, during the prompt and during the
output: test_abort_leaks.py.
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
from tests.engine.culprits import Culprits
from tests.regressions.running_server import RunningServer, StepGate, cancel, completion, run_server
from tests.server.processes import HANG_S
from tests.server.quick_start import serving

CULPRIT = tuple(range(200, 220))
MESSAGES = [{"role": "user", "content": "the quick brown fox"}]
EOS_FIRST = {"ignore_eos": False, "logit_bias": {"1": 100}}
# By request id: the body of a completion, and the status and the reason in its log line.
CASES: dict[str, tuple[dict[str, Any], int, str]] = {
    "length": ({"max_tokens": 4}, 200, "length"),
    "stop": (EOS_FIRST, 200, "stop"),
    "streamed": ({"max_tokens": 4, "stream": True}, 200, "length"),
    "invalid": ({"max_tokens": 0}, 400, "invalid_value"),
    "unknown-model": ({"model": "another"}, 404, "model_not_found"),
    "too-long": ({"max_tokens": 1000}, 400, "context_length_exceeded"),
    "too-large": ({"max_tokens": 400}, 400, "kv_capacity_exceeded"),
    "never-started": ({"queue_timeout": 1e-9}, 504, "queue_timeout"),
    "too-late": ({"timeout": 1e-6}, 504, "deadline_exceeded"),
    "failed": ({"prompt": list(CULPRIT)}, 500, "engine_error"),
    "failed-stream": ({"prompt": list(CULPRIT), "stream": True}, 500, "engine_error"),
}
NUM_REJECTED = sum(1 for _, status, _ in CASES.values() if 400 <= status < 500)


async def ask(server: RunningServer, name: str, **body: Any) -> int:
    """Send a completion with a request id, read its response to the end, and return the status."""
    response = await server.client.post("/v1/completions", json=completion(**body), headers={"x-request-id": name})
    return response.status_code


async def num_ended(server: RunningServer) -> float:
    """The number of ended requests in the metrics; each has one choice."""
    succeeded = await server.metric("vllm:request_success_total")
    return succeeded + await server.metric("quire_requests_aborted_total")


async def test_every_end_is_logged_once_with_its_reason_and_counted_once(caplog):
    gate = StepGate(10_000)
    gate.before_sample = Culprits({CULPRIT: 0}).before_sample
    async with run_server(gate, num_kv_blocks=16) as server:
        statuses = await asyncio.gather(*(ask(server, name, **body) for name, (body, _, _) in CASES.items()))
        assert statuses == [status for _, status, _ in CASES.values()]
        for name, (_, status, reason) in CASES.items():
            (line,) = server.lines_of(name)
            assert (line["status"], line["reason"]) == (status, reason)
        assert await num_ended(server) == len(CASES) - NUM_REJECTED


async def test_interrupted_outputs_are_logged_once_each():
    """By the deadline, by a disconnect, by a cancel; and rejected because the queue is full."""
    gate = StepGate()
    async with run_server(gate, max_num_seqs=1, max_queue=1) as server, asyncio.timeout(HANG_S):
        late = asyncio.create_task(ask(server, "late", max_tokens=400, timeout=1000, stream=True))
        await until(lambda: server.num_open == 1)
        disconnecting = asyncio.create_task(ask(server, "disconnected", max_tokens=400))
        await until(lambda: server.num_open == 2)
        assert await ask(server, "overloaded") == 503
        gate.allow(4)
        await server.wait_for_step(4)
        await cancel(disconnecting)
        await until(lambda: server.lines_of("disconnected"))
        server.clock.skip(1000)
        gate.allow()
        assert await late == 200
        await server.wait_until_idle()
        async with connect(server.url) as client:
            # More tokens than may wait for this client, so that the end cannot come before the cancel.
            stream = await client.chat(MESSAGES, max_tokens=470, ignore_eos=True)
            async for _ in stream.events():
                await stream.cancel()
            gate.hold()
            await client.chat(MESSAGES, max_tokens=400, ignore_eos=True)
            await until(lambda: server.num_open)
        gate.allow()
        await server.wait_until_idle()
        await until(lambda: len(server.log.records) == 6)
        (by_deadline,), (by_disconnect,), (rejected,) = map(server.lines_of, ("late", "disconnected", "overloaded"))
        assert (by_deadline["reason"], by_deadline["completion_tokens"]) == ("deadline_exceeded", 5)
        assert (by_disconnect["reason"], rejected["reason"]) == ("client_disconnected", "overloaded")
        streams = [line["reason"] for line in server.log.records if line["method"] == "START"]
        assert streams == ["cancelled", "client_disconnected"]
        assert await num_ended(server) == 4


async def test_readiness_follows_the_engines_progress():
    """While a step hangs, /livez stays 200 (the watchdog's job), and /readyz and /health return 503 at once."""
    gate = StepGate()
    async with run_server(gate, watchdog_timeout=0.2) as server:

        async def statuses() -> list[int]:
            return [(await server.client.get(path)).status_code for path in ("/livez", "/readyz", "/health")]

        assert await statuses() == [200, 200, 200]
        asking = asyncio.create_task(ask(server, "me", max_tokens=4))
        async with asyncio.timeout(HANG_S):
            while await statuses() != [200, 503, 503]:
                pass
        gate.allow()
        assert await asking == 200
        await until(lambda: not server.engine.health().is_busy)
        assert await statuses() == [200, 200, 200]


def test_a_server_without_options_logs_requests_to_stderr(tmp_path: Path):
    """Aborted requests are logged too."""
    log = tmp_path / "stderr"
    with log.open("w") as file, serving(str(tiny("Llama")), stderr=file) as server:
        server.wait_until_ready()
        with httpx.Client(base_url=server.url, timeout=HANG_S) as client:
            for name, body in {"done": {"max_tokens": 2}, "rejected": {"max_tokens": 0}}.items():
                client.post("/v1/completions", json=completion(**body), headers={"x-request-id": name})
            long = completion(max_tokens=490, stream=True, logprobs=20)  # more bytes than all buffers hold
            with client.stream("POST", "/v1/completions", json=long, headers={"x-request-id": "aborted"}) as response:
                next(response.iter_lines())
        server.process.terminate()
        assert server.end() == 0
    lines = [json.loads(line) for line in log.read_text().splitlines() if '"quire.access"' in line]
    found = [(line["request_id"], line["reason"]) for line in lines if line["path"] == "/v1/completions"]
    assert found == [("done", "length"), ("rejected", "invalid_value"), ("aborted", "client_disconnected")]
