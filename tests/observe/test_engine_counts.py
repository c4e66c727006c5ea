"""The engine's counts under their metric names."""

import dataclasses

from app.contract.engine_status import EngineStats
from app.observe.engine_counts import engine_counts
from app.observe.families import Families


def values_of(stats: EngineStats) -> dict[str, float]:
    """Every sample by its name, and its state where it has one."""
    return {
        ".".join(filter(None, (sample.name, sample.labels.get("state")))): sample.value
        for family in engine_counts(stats, Families({"engine": "0"}))
        for sample in family.samples
    }


def test_every_block_is_in_one_state():
    values = values_of(EngineStats(num_blocks=100, num_free_blocks=40, num_cached_blocks=25, num_fenced_blocks=10))
    assert values["quire_kv_blocks.free"] == 15
    assert values["quire_kv_blocks.cached"] == 25
    assert values["quire_kv_blocks.fenced"] == 10
    assert values["quire_kv_blocks.used"] == 50
    assert values["vllm:kv_cache_usage_perc"] == 0.5


def test_an_engine_without_blocks_uses_none_of_them():
    assert values_of(EngineStats())["vllm:kv_cache_usage_perc"] == 0


def test_every_count_of_the_engine_has_a_metric():
    """All fields but the step's number are distinct and found again."""
    in_states = {"num_blocks", "num_free_blocks", "num_cached_blocks", "num_fenced_blocks"}
    fields = {field.name for field in dataclasses.fields(EngineStats)} - in_states - {"step"}
    stats = EngineStats(**{name: 1000 + i for i, name in enumerate(sorted(fields))})
    assert {1000 + i for i in range(len(fields))} <= set(values_of(stats).values())


def test_counts_have_the_names_of_vllms_dashboards():
    stats = EngineStats(
        num_running=1, num_waiting=2, num_paused=3, num_preemptions=4, num_prefix_queries=5, num_prefix_hits=6,
        num_allocated_blocks=7, num_copied_blocks=8, num_swaps=9, num_lost_tokens=10, num_steps_over_budget=11,
        brownout_level=12, num_faults=13, num_failed_requests=14, num_host_blocks=15, num_drafts=16,
        num_draft_tokens=17, num_accepted_tokens=18, num_graphs=19,
    )  # fmt: skip
    values = values_of(stats)
    assert [
        values[name]
        for name in (
            "vllm:num_requests_running",
            "vllm:num_requests_waiting",
            "quire_sequences_paused",
            "vllm:num_preemptions_total",
            "vllm:prefix_cache_queries_total",
            "vllm:prefix_cache_hits_total",
            "quire_kv_blocks_allocated_total",
            "quire_kv_blocks_copied_total",
            "quire_swaps_total",
            "quire_lost_tokens_total",
            "quire_steps_over_budget_total",
            "quire_brownout_level",
            "quire_faults_total",
            "quire_requests_poisoned_total",
            "quire_kv_host_blocks",
            "vllm:spec_decode_num_drafts_total",
            "vllm:spec_decode_num_draft_tokens_total",
            "vllm:spec_decode_num_accepted_tokens_total",
            "quire_graph_captures_total",
        )
    ] == list(range(1, 20))
