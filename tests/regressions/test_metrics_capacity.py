"""How full the KV cache is, and how much it holds in tokens: one without the other plans nothing.

Others: llama.cpp#23632 (no KV usage), vllm#26850 and vllm#49706 (no capacity).
"""

from __future__ import annotations

import asyncio

from tests.api.serving import until
from tests.regressions.whole import Paced, whole_server

NUM_BLOCKS = 40
SIZE = 8


async def test_utilisation_and_capacity_in_tokens_are_told_and_agree():
    paced = Paced()
    settings = {"num_kv_blocks": NUM_BLOCKS, "block_size": SIZE, "max_num_seqs": 2}
    async with whole_server(paced, **settings) as whole:
        assert await whole.metric("vllm:kv_cache_usage_perc") == 0
        bodies = [{"prompt": list(range(10 + i, 30 + i)), "max_tokens": 60} for i in range(3)]
        asking = [asyncio.create_task(whole.complete(**body)) for body in bodies]
        await until(lambda: len(whole.engine._open) == len(bodies))
        paced.allow(8)
        await whole.at_step(8)
        capacity = await whole.metric("quire_kv_capacity_tokens")
        assert capacity == NUM_BLOCKS * SIZE
        (model,) = (await whole.client.get("/v1/models")).json()["data"]
        assert model["kv_capacity_tokens"] == capacity
        used = await whole.metric("vllm:kv_cache_usage_perc") * capacity
        # Two run, each of 20 tokens and those of 7 or 8 steps, in whole blocks.
        assert used == 2 * 4 * SIZE
        assert await whole.metric("quire_kv_blocks", state="used") == used / SIZE
        assert await whole.metric("quire_kv_blocks") == NUM_BLOCKS
        running = await whole.metric("vllm:num_requests_running"), await whole.metric("vllm:num_requests_waiting")
        assert running == (2, 1)
        paced.allow()
        await asyncio.gather(*asking)
        await whole.at_rest()
        assert await whole.metric("vllm:kv_cache_usage_perc") == 0
        assert await whole.metric("quire_kv_blocks", state="used") == 0
        assert await whole.metric("quire_kv_blocks") == NUM_BLOCKS
