"""The figures of a running engine as JSON: `GET /v1/engine/events` sends them, and each message of the live view."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from app.contract.engine_status import EngineState

MIN_INTERVAL_S, MAX_INTERVAL_S = 0.2, 60.0
"""From figures to figures, in seconds, as a client of the route may ask for."""


class BlockFigures(msgspec.Struct, frozen=True):
    """The blocks of the KV cache, each in one state; as `quire_kv_blocks`."""

    total: Annotated[int, Meta(description="blocks of the KV cache")]
    free: Annotated[int, Meta(description="blocks that hold nothing")]
    cached: Annotated[int, Meta(description="free blocks that hold prefixes until they are needed")]
    used: Annotated[int, Meta(description="blocks that requests or pins hold")]
    fenced: Annotated[int, Meta(description="released blocks that a step in flight may still access")]
    host: Annotated[
        int, Meta(description="blocks in host memory, of swapped requests and of earlier ones, beside the total")
    ]


class Percentiles(msgspec.Struct, frozen=True):
    """Percentiles of a time of the last minute, in milliseconds; from the buckets of a histogram, interpolated."""

    p50: Annotated[float, Meta(description="half of them are not longer")]
    p95: Annotated[float, Meta(description="95 of 100 are not longer")]
    p99: Annotated[float, Meta(description="99 of 100 are not longer")]


class EngineFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one moment, of all requests, whoever reads them; from the counters that `/metrics` shows."""

    model: Annotated[str, Meta(description="the served name of the model")]
    state: Annotated[EngineState, Meta(description="as the health routes report it")]
    running: Annotated[int, Meta(description="requests that are computed")]
    waiting: Annotated[int, Meta(description="requests in the queue")]
    paused: Annotated[int, Meta(description="requests whose client reads slowly")]
    blocks: Annotated[BlockFigures, Meta(description="the blocks of the KV cache by state")]
    tokens_per_s: Annotated[float, Meta(description="generated tokens a second, over the last five seconds")]
    prompt_tokens_per_s: Annotated[float, Meta(description="prompt tokens a second of requests that began to answer")]
    first_token_ms: Annotated[
        Percentiles | None, Meta(description="until the first token, of requests that ended in the last minute")
    ]
    between_tokens_ms: Annotated[Percentiles | None, Meta(description="from token to token, last minute")]
    hit_rate: Annotated[float | None, Meta(description="prompt tokens found in the prefix cache, 0 to 1, last minute")]
    step_ms: Annotated[float | None, Meta(description="the mean duration of a step, over the last five seconds")]
    step_target_ms: Annotated[float | None, Meta(description="`--itl-target`, if there is one")]
    steps_over_target: Annotated[int, Meta(description="steps of the last minute that took longer")]
    preemptions: Annotated[int, Meta(description="preemptions since the start")]
    swaps: Annotated[int, Meta(description="those that kept the blocks in host memory")]
    brownout: Annotated[int, Meta(description="the level of brown-out, 0 is none")]
    faults: Annotated[int, Meta(description="steps that raised an exception, since the start")]
