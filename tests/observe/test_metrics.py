"""Metrics: from step reports to the text format of Prometheus."""

from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from app.config.cache_config import CacheConfig
from app.contract.engine_counts import BlockCounts, PromptCounts, QueueCounts
from app.contract.engine_status import EngineStats, StepReport
from app.contract.errors import ErrorInfo
from app.contract.events import ChoiceEnd, Embedded, Finished, FinishReason, RequestFailed, Timings, TokenDelta, Usage
from app.contract.requests import EngineRequest, ToldChoice
from app.contract.sampling_params import SamplingParams
from app.observe.log_writer import LogCounts
from app.observe.metrics import Metrics
from app.streaming.open_requests import AdmissionCounts

LABELS = {"engine": "0", "model_name": "guide"}


def samples_of(metrics: Metrics) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    families = text_string_to_metric_families(metrics.render().decode())
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


def value_of(metrics: Metrics, name: str, **labels: str) -> float:
    return samples_of(metrics)[name, frozenset((LABELS | labels).items())]


def finished(reason: FinishReason, usage: Usage, timings: Timings, choice: int = 0) -> Finished:
    return Finished("r", choice, ChoiceEnd(reason), usage, timings)


@pytest.fixture
def metrics():
    return Metrics("guide")


def test_gauges_are_those_of_the_last_step(metrics):
    metrics.observe(StepReport((), EngineStats(queues=QueueCounts(9, 9))))
    metrics.observe(StepReport((), EngineStats(queues=QueueCounts(3, 2))))
    assert value_of(metrics, "vllm:num_requests_running") == 3
    assert value_of(metrics, "vllm:num_requests_waiting") == 2


def test_a_finished_request_is_counted_once_with_its_tokens_and_times(metrics):
    end = finished(FinishReason.STOP, Usage(10, 5), Timings(0.25, 1.0, 3.0))
    metrics.observe(StepReport((TokenDelta("r", 0, 1, (5,), "x"), end), EngineStats()))
    assert value_of(metrics, "vllm:request_success_total", finished_reason="stop") == 1
    assert value_of(metrics, "vllm:request_success_total", finished_reason="length") == 0
    assert value_of(metrics, "vllm:request_queue_time_seconds_sum") == 0.25
    assert value_of(metrics, "vllm:time_to_first_token_seconds_sum") == 1.0
    assert value_of(metrics, "vllm:e2e_request_latency_seconds_sum") == 3.0
    assert value_of(metrics, "vllm:request_time_per_output_token_seconds_sum") == 0.5
    assert value_of(metrics, "vllm:request_prompt_tokens_sum") == 10
    assert value_of(metrics, "vllm:request_generation_tokens_count") == 1


def test_an_output_of_one_token_has_no_time_per_output_token(metrics):
    end = finished(FinishReason.LENGTH, Usage(10, 1), Timings(0, 1, 1))
    metrics.observe(StepReport((end,), EngineStats()))
    assert value_of(metrics, "vllm:request_time_per_output_token_seconds_count") == 0


def test_requests_that_did_not_finish_are_counted_by_reason(metrics):
    cancelled = finished(FinishReason.CANCELLED, Usage(10, 1), Timings(0, 0, 0))
    codes = ["engine_error", "engine_error", "queue_timeout", "kv_capacity_exceeded"]
    failed = [RequestFailed(f"f{i}", ErrorInfo(code, "x")) for i, code in enumerate(codes)]
    metrics.observe(StepReport((cancelled, *failed), EngineStats()))
    for reason, count in (
        ("cancelled", 1),
        ("engine_error", 2),
        ("queue_timeout", 1),
        ("deadline_exceeded", 0),
        ("kv_capacity_exceeded", 1),
    ):
        assert value_of(metrics, "quire_requests_aborted_total", reason=reason) == count


def test_embeddings_are_counted_with_their_tokens_and_are_no_choices(metrics):
    ends = (Embedded("e-0", b"", 7), Embedded("e-1", b"", 4))
    metrics.observe(StepReport(ends, EngineStats(prompts=PromptCounts(11)), num_prefill_tokens=11))
    assert value_of(metrics, "quire_embeddings_total") == 2
    assert value_of(metrics, "quire_embedding_tokens_total") == value_of(metrics, "vllm:prompt_tokens_total") == 11
    assert value_of(metrics, "vllm:request_success_total", finished_reason="stop") == 0
    assert value_of(metrics, "vllm:generation_tokens_total") == 0


def test_values_of_a_request_are_observed_once_for_several_choices(metrics):
    ends = [
        finished(FinishReason.STOP, Usage(10, 5), Timings(0.25, 1.0, 2.0), choice=0),
        finished(FinishReason.LENGTH, Usage(10, 8), Timings(0.25, 1.0, 3.0), choice=1),
        finished(FinishReason.LENGTH, Usage(10, 8), Timings(0.25, 1.0, 3.0), choice=2),
    ]
    metrics.observe(StepReport((ends[1],), EngineStats()))
    metrics.observe(StepReport((ends[0], ends[2]), EngineStats()))
    assert value_of(metrics, "vllm:request_success_total", finished_reason="stop") == 1
    assert value_of(metrics, "vllm:request_success_total", finished_reason="length") == 2
    for name, count, total in (
        ("vllm:request_prompt_tokens", 1, 10),
        ("vllm:request_queue_time_seconds", 1, 0.25),
        ("vllm:time_to_first_token_seconds", 1, 1.0),
        ("vllm:request_generation_tokens", 3, 21),
        ("vllm:e2e_request_latency_seconds", 3, 8.0),
        ("vllm:request_time_per_output_token_seconds", 3, 0.25 + 2 * 2 / 7),
    ):
        assert value_of(metrics, f"{name}_count") == count
        assert value_of(metrics, f"{name}_sum") == pytest.approx(total)
    assert value_of(metrics, "vllm:generation_tokens_total") == 21


def test_of_a_request_of_an_earlier_process_only_new_tokens_and_the_end_are_counted(metrics):
    told = (ToldChoice((5, 6, 7)), ToldChoice(has_ended=True), ToldChoice())
    params = SamplingParams(n=3, max_tokens=9, seed=0)
    metrics.go_on(EngineRequest("r", (1, 2), params, 0.0, told=told))
    ends = [finished(FinishReason.LENGTH, Usage(2, 9), Timings(0, 50, 60), choice) for choice in (0, 2)]
    metrics.observe(StepReport((TokenDelta("r", 0, 4, (8,), "x"), ends[0]), EngineStats()))
    metrics.observe(StepReport((ends[1],), EngineStats()))
    assert value_of(metrics, "vllm:generation_tokens_total") == 6 + 9
    assert value_of(metrics, "vllm:request_success_total", finished_reason="length") == 2
    counts = {name: value for (name, _), value in samples_of(metrics).items() if name.endswith("_count")}
    assert not any(value for name, value in counts.items() if "request_" in name or "first_token" in name)
    metrics.observe(StepReport((finished(FinishReason.STOP, Usage(2, 9), Timings(0, 1, 2)),), EngineStats()))
    assert value_of(metrics, "vllm:time_to_first_token_seconds_count") == 1, "a later request of the same id is new"


@pytest.mark.parametrize("end", ["cancelled", "failed"])
def test_a_request_of_an_earlier_process_without_tokens_is_forgotten_with_its_end(metrics, end):
    metrics.go_on(EngineRequest("r", (1, 2), SamplingParams(max_tokens=9, seed=0), 0.0))
    cancelled = finished(FinishReason.CANCELLED, Usage(2, 1), Timings(0, 0, 0))
    last = cancelled if end == "cancelled" else RequestFailed("r", ErrorInfo("engine_error", "x"))
    metrics.observe(StepReport((last,), EngineStats()))
    metrics.observe(StepReport((finished(FinishReason.STOP, Usage(2, 9), Timings(0, 1, 2)),), EngineStats()))
    assert value_of(metrics, "vllm:request_generation_tokens_count") == 1


def test_a_request_with_several_choices_is_cancelled_once(metrics):
    ends = [finished(FinishReason.CANCELLED, Usage(10, 5), Timings(0, 0, 0), choice=i) for i in range(3)]
    other = Finished("other", 0, ChoiceEnd(FinishReason.CANCELLED), Usage(10, 5), Timings(0, 0, 0))
    metrics.observe(StepReport((*ends, other), EngineStats()))
    assert value_of(metrics, "quire_requests_aborted_total", reason="cancelled") == 2


def test_the_loops_lag_is_observed(metrics):
    metrics.steps.loop_lag_s.observe(0.002)
    metrics.steps.loop_lag_s.observe(0.3)
    assert value_of(metrics, "quire_event_loop_lag_seconds_count") == 2
    assert value_of(metrics, "quire_event_loop_lag_seconds_bucket", le="0.0025") == 1


def test_prompt_tokens_and_computed_prefill_tokens_are_separate_metrics(metrics):
    for num_prefill, num_prompt in ((512, 0), (88, 700), (0, 1400)):
        stats = EngineStats(prompts=PromptCounts(num_prompt))
        metrics.observe(StepReport((), stats, 0.001, num_prefill_tokens=num_prefill, num_decode_tokens=3))
    assert value_of(metrics, "vllm:prompt_tokens_total") == 1400
    assert value_of(metrics, "quire_step_tokens_sum", kind="prefill") == 600


def test_iteration_tokens_are_prompt_and_generation_tokens(metrics):
    first = TokenDelta("r", 0, 1, (5,), "x")
    metrics.observe(StepReport((), EngineStats(), 0.001, num_prefill_tokens=64))
    metrics.observe(StepReport((first,), EngineStats(prompts=PromptCounts(100)), 0.001, num_prefill_tokens=36))
    metrics.observe(
        StepReport(
            (finished(FinishReason.STOP, Usage(100, 3), Timings(0, 1, 2)),), EngineStats(prompts=PromptCounts(100))
        )
    )
    assert value_of(metrics, "vllm:iteration_tokens_total_sum") == 100 + 3
    assert value_of(metrics, "vllm:iteration_tokens_total_count") == 2
    totals = [value_of(metrics, f"vllm:{kind}_tokens_total") for kind in ("prompt", "generation")]
    assert sum(totals) == value_of(metrics, "vllm:iteration_tokens_total_sum")


def test_phases_and_parameters_of_ended_requests_are_observed(metrics):
    params = SamplingParams(n=2, max_tokens=7)
    for choice, total_s in enumerate((3.0, 4.0)):
        end = replace(finished(FinishReason.STOP, Usage(10, 5), Timings(0.25, 1.0, total_s), choice), params=params)
        metrics.observe(StepReport((end,), EngineStats()))
    for name, count, total in (
        ("request_prefill_time_seconds", 1, 0.75),
        ("request_decode_time_seconds", 2, 2.0 + 3.0),
        ("request_inference_time_seconds", 2, 2.75 + 3.75),
        ("request_params_n", 1, 2),
        ("request_params_max_tokens", 1, 7),
    ):
        assert value_of(metrics, f"vllm:{name}_count") == count
        assert value_of(metrics, f"vllm:{name}_sum") == total


def test_a_prompt_without_an_answer_has_a_max_tokens_of_zero(metrics):
    end = finished(FinishReason.LENGTH, Usage(10, 0), Timings(0.25, 1.0, 1.0))
    metrics.observe(StepReport((replace(end, params=SamplingParams(max_tokens=1)),), EngineStats()))
    assert value_of(metrics, "vllm:request_params_max_tokens_count") == 1
    assert value_of(metrics, "vllm:request_params_max_tokens_sum") == 0


def test_waiting_requests_are_counted_by_reason(metrics):
    metrics.observe(StepReport((), EngineStats(queues=QueueCounts(0, 2))))
    assert value_of(metrics, "vllm:num_requests_waiting_by_reason", reason="capacity") == 2
    assert value_of(metrics, "vllm:num_requests_waiting_by_reason", reason="deferred") == 0


def test_the_cache_is_described_by_labels():
    metrics = Metrics("guide", CacheConfig(kv_cache_dtype="int8"))
    metrics.observe(StepReport((), EngineStats(blocks=BlockCounts(50, num_capacity_tokens=1600))))
    (labels,) = [dict(labels) for name, labels in samples_of(metrics) if name == "vllm:cache_config_info"]
    assert labels["num_gpu_blocks"] == "50" and labels["block_size"] == "32"
    assert labels["cache_dtype"] == "int8" and labels["enable_prefix_caching"] == "True"


def test_generated_tokens_are_counted_with_their_deltas(metrics):
    metrics.observe(StepReport((TokenDelta("a", 0, 1, (5,), "x"), TokenDelta("b", 0, 1, (5, 6), "x")), EngineStats()))
    metrics.observe(StepReport((TokenDelta("a", 0, 2, (7,), "x"),), EngineStats()))
    assert value_of(metrics, "vllm:generation_tokens_total") == 4


@pytest.mark.parametrize("reason", [FinishReason.STOP, FinishReason.CANCELLED])
def test_tokens_without_a_delta_are_counted_at_the_finish(metrics, reason):
    end = finished(reason, Usage(10, 4), Timings(0, 0, 0))
    metrics.observe(StepReport((TokenDelta("r", 0, 1, (5, 6), "x"),), EngineStats()))
    metrics.observe(StepReport((TokenDelta("r", 0, 3, (7,), "x"), end), EngineStats()))
    assert value_of(metrics, "vllm:generation_tokens_total") == 4
    metrics.observe(StepReport((TokenDelta("r", 0, 1, (5,), "an id used again"),), EngineStats()))
    assert value_of(metrics, "vllm:generation_tokens_total") == 5


def test_tokens_of_every_choice_of_a_failed_request_stay_counted(metrics):
    metrics.observe(StepReport((TokenDelta("r", 0, 1, (5, 6), "x"), TokenDelta("r", 1, 1, (5,), "x")), EngineStats()))
    metrics.observe(StepReport((RequestFailed("r", ErrorInfo("engine_error", "x")),), EngineStats()))
    assert value_of(metrics, "vllm:generation_tokens_total") == 3
    metrics.observe(StepReport((TokenDelta("r", 1, 1, (5,), "an id used again"),), EngineStats()))
    assert value_of(metrics, "vllm:generation_tokens_total") == 4


def test_an_unknown_finish_reason_is_counted_under_its_name(metrics):
    metrics.observe(StepReport((finished("tool_calls", Usage(10, 1), Timings(0, 0, 0)),), EngineStats()))
    assert value_of(metrics, "vllm:request_success_total", finished_reason="tool_calls") == 1


def test_a_step_is_observed_once_with_its_tokens(metrics):
    metrics.observe(StepReport((), EngineStats(), 0.002, num_prefill_tokens=100, num_decode_tokens=30))
    assert value_of(metrics, "quire_step_seconds_count") == 1
    assert value_of(metrics, "quire_step_tokens_sum", kind="prefill") == 100
    assert value_of(metrics, "quire_step_tokens_sum", kind="decode") == 30
    assert value_of(metrics, "vllm:inter_token_latency_seconds_count") == 30
    assert value_of(metrics, "vllm:inter_token_latency_seconds_bucket", le="0.0025") == 30
    assert value_of(metrics, "vllm:inter_token_latency_seconds_bucket", le="0.001") == 0


def test_a_step_that_computed_nothing_is_not_observed(metrics):
    metrics.observe(StepReport((), EngineStats(), 0.002))
    assert value_of(metrics, "quire_step_seconds_count") == 0


def test_every_family_is_rendered_once_before_the_first_report(metrics):
    names = [line.split()[2] for line in metrics.render().decode().splitlines() if line.startswith("# TYPE")]
    assert len(names) == len(set(names)) > 40
    assert all(name.startswith(("vllm:", "quire_", "process_")) for name in names)


def test_two_servers_have_separate_counts(metrics):
    other = Metrics("other")
    metrics.observe(StepReport((), EngineStats(queues=QueueCounts(3))))
    assert (
        samples_of(other)["vllm:num_requests_running", frozenset({"engine": "0", "model_name": "other"}.items())] == 0
    )


def test_counts_of_other_parts_are_those_of_the_time_when_they_are_read(metrics):
    counts = LogCounts()
    metrics.include(lambda: counts)
    assert value_of(metrics, "quire_log_records_dropped_total") == 0
    counts.num_dropped = 7
    assert value_of(metrics, "quire_log_records_dropped_total") == 7


def test_a_request_has_one_longest_choice_and_its_own_preemptions_and_computed_tokens(metrics):
    params = SamplingParams(n=2)
    for request_id, lengths in (("a", (5, 9)), ("b", (7, 3))):
        for choice, length in enumerate(lengths):
            usage = Usage(10, length, cached_tokens=4, preemptions=2)
            end = Finished(request_id, choice, ChoiceEnd(FinishReason.STOP), usage, Timings(0, 1, 2), params)
            metrics.observe(StepReport((end,), EngineStats()))
    for name, total in (
        ("request_max_num_generation_tokens", 9 + 7),
        ("request_num_preemptions", 2 + 2),
        ("request_prefill_kv_computed_tokens", 6 + 6),
    ):
        assert value_of(metrics, f"vllm:{name}_count") == 2
        assert value_of(metrics, f"vllm:{name}_sum") == total


@pytest.mark.parametrize("is_failed", [True, False])
def test_a_request_that_did_not_finish_has_no_longest_choice(metrics, is_failed):
    params, usage = SamplingParams(n=2), Usage(10, 5)
    first = Finished("r", 0, ChoiceEnd(FinishReason.STOP), usage, Timings(0, 1, 2), params)
    failed = RequestFailed("r", ErrorInfo("engine_error", "x"))
    cancelled = Finished("r", 1, ChoiceEnd(FinishReason.CANCELLED), usage, Timings(0, 1, 2), params)
    metrics.observe(StepReport((first, failed if is_failed else cancelled), EngineStats()))
    assert value_of(metrics, "vllm:request_max_num_generation_tokens_count") == 0
    assert metrics._ended._open == {}


def test_prompt_tokens_are_counted_by_their_source(metrics):
    metrics.observe(StepReport((), EngineStats(prompts=PromptCounts(10, 4))))
    assert value_of(metrics, "vllm:prompt_tokens_cached_total") == 4
    for source, count in (("local_compute", 6), ("local_cache_hit", 4), ("external_kv_transfer", 0)):
        assert value_of(metrics, "vllm:prompt_tokens_by_source_total", source=source) == count


def test_the_process_is_measured_where_the_system_has_a_proc(metrics):
    if Path("/proc/self/stat").exists():
        assert samples_of(metrics)["process_resident_memory_bytes", frozenset()] > 0


def test_what_is_counted_in_front_of_the_engine_has_no_label_of_it(metrics):
    metrics.include(AdmissionCounts)
    name = "vllm:admission_rejections_total"
    labels = {"model_name": "guide", "reason": "max_num_queued_reqs"}
    assert samples_of(metrics)[name, frozenset(labels.items())] == 0
