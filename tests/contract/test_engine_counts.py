"""The engine's counts under their metric names."""

import dataclasses
from itertools import count

from app.contract.counts import Values, values_of
from app.contract.engine_counts import (
    BlockCounts,
    PreemptionCounts,
    QueueCounts,
    RecoveryCounts,
    SpeculationCounts,
    StartCounts,
)
from app.contract.engine_status import EngineStats

# Of what these count, derived families show parts: blocks by state. `step` and the figures of docs have no family.
WITHOUT_FAMILY = {"step", "num_blocks", "num_free", "num_cached", "num_fenced", "num_requests", "rank"}


def shown(stats: EngineStats) -> dict[str, Values]:
    """The values of all families."""
    return {family.name: values for family, values in values_of(stats)}


def test_every_block_is_in_one_state():
    values = shown(EngineStats(blocks=BlockCounts(num_blocks=100, num_free=40, num_cached=25, num_fenced=10)))
    assert values["quire_kv_blocks"] == {"free": 15, "cached": 25, "used": 50, "fenced": 10}
    assert values["vllm:kv_cache_usage_perc"] == 0.5


def test_an_engine_without_blocks_uses_none_of_them():
    assert shown(EngineStats())["vllm:kv_cache_usage_perc"] == 0


def test_every_count_of_the_engine_has_a_metric():
    """The fields of all parts are distinct numbers, and found again."""
    number, expected, parts = count(1000), set(), {}
    for part in dataclasses.fields(EngineStats):
        if isinstance(kind := part.default_factory, type):
            values = {field.name: next(number) for field in dataclasses.fields(kind)}
            expected |= {value for name, value in values.items() if name not in WITHOUT_FAMILY}
            parts[part.name] = kind(**values)
    assert len(parts) == 11
    found = shown(EngineStats(**parts)).values()
    assert expected <= {one for value in found for one in (value.values() if isinstance(value, dict) else [value])}


def test_counts_have_the_names_of_vllms_dashboards():
    values = shown(
        EngineStats(
            brownout_level=12,
            queues=QueueCounts(1, 2, 3),
            preemption=PreemptionCounts(4, 9),
            starts=StartCounts(5, 6, 10),
            speculation=SpeculationCounts(16, 17, 18),
            recovery=RecoveryCounts(13, 14),
        )
    )
    assert values["vllm:num_requests_waiting_by_reason"] == {"capacity": 2, "deferred": 0}
    assert {
        "vllm:num_requests_running": 1,
        "vllm:num_requests_waiting": 2,
        "quire_sequences_paused": 3,
        "vllm:num_preemptions": 4,
        "vllm:prefix_cache_queries": 5,
        "vllm:prefix_cache_hits": 6,
        "quire_swaps": 9,
        "quire_lost_tokens": 10,
        "quire_brownout_level": 12,
        "quire_faults": 13,
        "quire_requests_poisoned": 14,
        "vllm:spec_decode_num_drafts": 16,
        "vllm:spec_decode_num_draft_tokens": 17,
        "vllm:spec_decode_num_accepted_tokens": 18,
    }.items() <= values.items()
