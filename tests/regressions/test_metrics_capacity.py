"""The metrics report both the usage of the KV cache and its capacity in tokens.

Others: llama.cpp#23632 (no KV usage), vllm#26850 and vllm#49706 (no capacity).
"""

from __future__ import annotations

import asyncio

from tests.api.serving import until
from tests.regressions.running_server import StepGate, run_server

NUM_BLOCKS = 40
SIZE = 8


async def test_usage_and_capacity_of_the_kv_cache_are_reported_and_agree():
    gate = StepGate()
    settings = {"num_kv_blocks": NUM_BLOCKS, "block_size": SIZE, "max_num_seqs": 2}
    async with run_server(gate, **settings) as server:
        assert await server.metric("vllm:kv_cache_usage_perc") == 0
        bodies = [{"prompt": list(range(10 + i, 30 + i)), "max_tokens": 60} for i in range(3)]
        asking = [asyncio.create_task(server.complete(**body)) for body in bodies]
        await until(lambda: server.num_open == len(bodies))
        gate.allow(8)
        await server.wait_for_step(8)
        capacity = await server.metric("quire_kv_capacity_tokens")
        assert capacity == NUM_BLOCKS * SIZE
        (model,) = (await server.client.get("/v1/models")).json()["data"]
        assert model["kv_capacity_tokens"] == capacity
        used = await server.metric("vllm:kv_cache_usage_perc") * capacity
        # Two sequences run, each with 20 prompt tokens and 7 or 8 generated ones, rounded up to full blocks.
        assert used == 2 * 4 * SIZE
        assert await server.metric("quire_kv_blocks", state="used") == used / SIZE
        assert await server.metric("quire_kv_blocks") == NUM_BLOCKS
        running = await server.metric("vllm:num_requests_running"), await server.metric("vllm:num_requests_waiting")
        assert running == (2, 1)
        gate.allow()
        await asyncio.gather(*asking)
        await server.wait_until_idle()
        assert await server.metric("vllm:kv_cache_usage_perc") == 0
        assert await server.metric("quire_kv_blocks", state="used") == 0
        assert await server.metric("quire_kv_blocks") == NUM_BLOCKS
