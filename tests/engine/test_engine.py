"""The loop of scheduler, runner and output processor, with a tiny model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf

import pytest

from app.contract.engine_counts import GraphCounts
from app.contract.events import Finished, FinishReason, RequestFailed
from app.contract.requests import Abort, EngineRequest, Pause, Resume, Submit
from app.contract.sampling_params import SamplingParams
from app.engine.engine import Engine
from app.engine.execute.cpu.runner import ComputedStep
from app.engine.execute.masks import Masks
from app.engine.output_processor import OutputProcessor
from app.engine.schedule.scheduler import Scheduler
from app.engine.schedule.step_plan import Sample, StepPlan, StepResult
from tests.checkpoints import tiny
from tests.engine.driving import Run, build, generate, request
from tests.engine.execute.faulty_runner import FaultyRunner
from tests.engine.sequence_groups import TOKENIZER

PROMPTS = {name: tuple(range(first, first + length)) for name, first, length in
           (("a", 10, 5), ("b", 40, 30), ("c", 90, 1), ("d", 120, 70), ("e", 200, 17))}  # fmt: skip


class LaunchFaults(FaultyRunner):
    """Raises at the given launches, counted from 1."""

    def __init__(self, *launches: int, error: Callable[[], BaseException] = lambda: RuntimeError("a fault")) -> None:
        self.launches = set(launches)
        self.error = error
        self.num_launches = 0
        self.failed: list[StepPlan] = []

    def before_launch(self, plan: StepPlan) -> None:
        self.num_launches += 1
        if self.num_launches in self.launches:
            self.failed.append(plan)
            raise self.error()


class BrokenDetokenizer:
    """A detokenizer that always raises."""

    def __init__(self, kind: type[BaseException]) -> None:
        self.kind = kind

    def append(self, token_id: int) -> str:
        raise self.kind("broken")


def engine(**settings: object) -> Engine:
    return build(tiny("Llama"), **{"max_num_batched_tokens": 32, "max_num_seqs": 8, **settings})


def requests_of(built: Engine, **params: object) -> list[EngineRequest]:
    return [request(built, name, prompt, seed=1, **{"temperature": 0.8, **params}) for name, prompt in PROMPTS.items()]


def baseline() -> dict[str, list[int]]:
    built = engine()
    return generate(built, requests_of(built))


def test_every_request_gets_its_tokens_and_one_end():
    built = engine()
    run = Run(built)
    run.add(*requests_of(built, max_tokens=9))
    run.finish()
    for name, prompt in PROMPTS.items():
        end = run.end(name)
        assert isinstance(end, Finished) and end.reason is FinishReason.LENGTH
        assert (end.usage.prompt_tokens, end.usage.completion_tokens) == (len(prompt), 9)
        assert len(run.tokens(name)) == 9
    stats = built.stats()
    assert stats.blocks.num_free == stats.blocks.num_blocks == 128
    assert (stats.queues.num_running, stats.queues.num_waiting, stats.queues.num_paused) == (0, 0, 0)


def test_a_step_counts_what_it_computed():
    built = engine()
    run = Run(built)
    run.add(*requests_of(built, max_tokens=3)[:2])
    run.step()
    assert run.counts == (32, 0) and built.stats().step == 1
    run.step()
    assert run.counts == (3, 1)
    run.step()
    assert run.counts == (0, 2)
    run.finish()
    run.step()
    assert run.counts == (0, 0)


def test_an_engine_at_work_has_unfilled_slots_and_an_idle_one_none():
    built = engine()
    run = Run(built)
    run.add(*requests_of(built, max_tokens=3)[:1])
    run.step()
    num_tokens = len(next(iter(PROMPTS.values())))
    assert built.stats().blocks.num_unfilled_tokens == built.stats().blocks.num_used * 16 - num_tokens > 0
    run.finish()
    assert built.stats().blocks.num_unfilled_tokens == 0


@pytest.mark.parametrize("enforce_eager", [False, True])
def test_steps_are_counted_by_mode(enforce_eager: bool):
    built = engine(enforce_eager=enforce_eager)
    run = Run(built)
    run.add(*requests_of(built, max_tokens=3)[:1])
    run.finish()
    graphs = built.stats().graphs
    assert (graphs.num_graph_steps, graphs.num_eager_steps)[:: -1 if enforce_eager else 1] == (built.num_steps, 0)


def test_a_turn_runs_commands_in_order_and_reports_its_duration():
    built = engine()
    built.clock = lambda: 5.0
    first, second = requests_of(built, max_tokens=3)[:2]
    report = built.turn([Submit(first), Submit(second), Pause(second.id), Abort(first.id)], 3.0)
    assert [type(event) for event in report.events] == [Finished] and report.events[0].request_id == first.id
    assert (report.duration_s, report.stats.step, report.stats.queues.num_paused) == (2.0, 0, 1)
    assert built.next_wakeup(3.0) == inf
    assert built.turn([Resume(second.id)], 3.0).stats.step == 1
    assert built.next_wakeup(4.0) == 4.0


@pytest.mark.parametrize("launch", [1, 2, 3, 7, 15])
def test_no_request_loses_a_token_when_a_step_raises(launch: int, caplog: pytest.LogCaptureFixture):
    """The requests of the step are replayed, the others continue, blocks are freed; later requests are unaffected."""
    faults = LaunchFaults(launch)
    built = engine(faults=faults, max_num_seqs=2, max_num_batched_tokens=16)
    assert generate(built, requests_of(built)) == baseline()
    assert len(faults.failed) == 1 and "a fault" in caplog.text
    assert built.output.num_open == 0, "the output processor has dropped them too"
    later = [request(built, f"later {name}", prompt, seed=1, temperature=0.8) for name, prompt in PROMPTS.items()]
    assert list(generate(built, later).values()) == list(baseline().values())


def test_failing_every_third_step_changes_no_token_and_leaks_nothing(caplog: pytest.LogCaptureFixture):
    built = engine(faults=LaunchFaults(*range(3, 80, 3)), num_kv_blocks=9)
    run = Run(built)
    run.add(*requests_of(built))
    run.finish()
    assert {name: run.tokens(name) for name in PROMPTS} == baseline()
    assert built.stats().blocks.num_free == 9


class Panic(BaseException):
    """Like a panic in a native library: a BaseException, but no Exception."""


@pytest.mark.parametrize("kind", [ZeroDivisionError, Panic])
def test_a_detokenizer_error_fails_only_its_request(kind: type[BaseException]):
    built = engine()
    run = Run(built)
    requests = requests_of(built)
    run.add(*requests)
    run.step(3)
    victim = requests[0].id
    choice = next(each for each in built.output._choices.values() if each._request_id == victim)
    choice._detokenizer = BrokenDetokenizer(kind)  # type: ignore[assignment]
    run.finish()
    failed = run.end(victim)
    assert isinstance(failed, RequestFailed) and failed.error.code == "engine_error"
    expected = baseline()
    assert {each.id: run.tokens(each.id) for each in requests[1:]} == {
        each.id: expected[each.id] for each in requests[1:]
    }
    assert built.stats().blocks.num_free == built.stats().blocks.num_blocks


def test_a_request_that_was_not_admitted_is_rejected_and_changes_no_other():
    built = engine()
    run = Run(built)
    good, *_ = requests_of(built)
    run.add(good, replace(good, id="raw", params=SamplingParams()), replace(good, id="far", prompt_token_ids=(10**6,)))
    run.add(good)  # the same id again: ignored
    run.finish()
    assert run.tokens(good.id) == baseline()[good.id]
    for name in ("raw", "far"):
        end = run.end(name)
        assert isinstance(end, RequestFailed) and end.error.code == "invalid_value"


def test_an_extreme_penalty_changes_no_other_request():
    """A penalty that turns the -inf of a forbidden token into NaN must neither fail the step nor allow the token."""
    built = engine()
    run = Run(built)
    good, *_ = requests_of(built)
    odd = request(
        built, "odd", (5, 6, 7), temperature=1.0, min_tokens=3, stop_token_ids=[5, 6], repetition_penalty=0.01,
        logit_bias={5: 100.0, 6: 100.0}, min_p=0.5, top_k=1, seed=1,
    )  # fmt: skip
    run.add(good, odd)
    run.finish()
    assert run.tokens(good.id) == baseline()[good.id]
    assert not {5, 6} & set(run.tokens("odd")[:3]) and len(run.tokens("odd")) >= 3


def test_the_engine_works_after_an_interrupted_step():
    """Ctrl-C during a step is raised; after the step's requests are aborted, the next request is served."""
    built = engine(faults=LaunchFaults(3, error=KeyboardInterrupt))
    run = Run(built)
    run.add(*requests_of(built))
    with pytest.raises(KeyboardInterrupt):
        run.finish()
    for name in PROMPTS:
        built.abort(name, 0.0)
    assert not built.has_ready_work
    built.scheduler.check_integrity()
    assert generate(built, [request(built, "next", PROMPTS["a"], seed=1, temperature=0.8)])["next"] == baseline()["a"]


def test_an_abort_frees_all_blocks_at_once_and_is_reported_once():
    built = engine()
    run = Run(built)
    run.add(*requests_of(built))
    run.step(4)
    for name in PROMPTS:
        end = built.abort(name, 5.0)[-1]
        assert isinstance(end, Finished) and end.reason is FinishReason.CANCELLED
        assert built.abort(name, 5.0) == []
    assert built.abort("unknown", 5.0) == []
    assert built.stats().blocks.num_free == built.stats().blocks.num_blocks
    assert not built.has_ready_work


def test_an_abort_changes_no_other_request():
    built = engine()
    run = Run(built)
    run.add(*requests_of(built))
    run.step(3)
    run.events += built.abort("b", 0.0)
    run.finish()
    expected = baseline()
    assert all(run.tokens(name) == expected[name] for name in PROMPTS if name != "b")
    assert expected["b"][: len(run.tokens("b"))] == run.tokens("b")


def test_a_paused_request_keeps_its_blocks_and_gets_no_token_until_resumed():
    built = engine()
    run = Run(built)
    run.add(*requests_of(built))
    run.step(8)
    built.pause("a")
    so_far = len(run.tokens("a"))
    assert 0 < so_far < 16
    run.finish()
    assert len(run.tokens("a")) == so_far and built.stats().queues.num_paused == 1
    assert built.stats().blocks.num_free == built.stats().blocks.num_blocks - 1
    assert not built.has_ready_work, "no ready work while the only request is paused"
    built.resume("a")
    run.finish()
    assert run.tokens("a") == baseline()["a"]


def test_a_paused_request_continues_with_the_same_tokens_after_preemption():
    built = engine(num_kv_blocks=9)
    run = Run(built)
    run.add(*requests_of(built)[:2])
    run.step(8)
    built.pause("b")
    run.add(*requests_of(built)[3:])
    run.finish()
    assert built.stats().preemption.num_preemptions > 0
    built.resume("b")
    run.finish()
    assert {name: run.tokens(name) for name in "abde"} == {name: baseline()[name] for name in "abde"}


def test_a_request_that_can_never_run_fails_at_once():
    built = engine(num_kv_blocks=4, max_model_len=128)
    params = SamplingParams(max_tokens=100, seed=0, temperature=0.0)
    for prompt, code in (((), "invalid_value"), (range(4, 60), "context_length_exceeded")):
        (event,) = built.add(EngineRequest("x", tuple(prompt), params, 0.0))
        assert isinstance(event, RequestFailed) and event.error.code == code
    (event,) = built.add(EngineRequest("x", tuple(range(4, 24)), params, 0.0))
    assert isinstance(event, RequestFailed) and event.error.code == "kv_capacity_exceeded"
    assert not built.has_ready_work


def test_an_eos_token_ends_the_output_and_is_not_part_of_it():
    built = engine()
    run = Run(built)
    run.add(request(built, "x", PROMPTS["a"], max_tokens=30, ignore_eos=False, logit_bias={1: 100.0}, min_tokens=3))
    run.finish()
    end = run.end("x")
    assert isinstance(end, Finished) and end.reason is FinishReason.STOP
    assert len(run.tokens("x")) == 3 and 1 not in run.tokens("x")
    assert end.usage.completion_tokens == 4


def test_logprobs_come_with_every_token():
    built = engine()
    run = Run(built)
    run.add(request(built, "x", PROMPTS["b"], max_tokens=6, logprobs=3))
    run.finish()
    entries = [entry for event in run.of("x")[:-1] for entry in event.logprobs]
    assert [entry.token_id for entry in entries] == run.tokens("x")
    for entry in entries:
        assert entry.rank == 1 and len(entry.top_token_ids) == 3 and entry.top_token_ids[0] == entry.token_id
        assert entry.logprob == entry.top_logprobs[0] >= entry.top_logprobs[1] >= entry.top_logprobs[2]


class FakeRunner:
    """Samples token 7 for every logit row, one step ahead; raises at one launch."""

    has_idle_work, counts = False, GraphCounts()

    def __init__(self, fails_at: int, masks: Masks) -> None:
        self.fails_at, self.masks = fails_at, masks
        self.num_launches = 0

    def launch(self, plan: StepPlan) -> ComputedStep:
        self.num_launches += 1
        if self.num_launches == self.fails_at:
            raise RuntimeError("a fault")
        step = ComputedStep(plan, StepResult(plan.step, tuple(Sample(each.sequence_id, 7) for each in plan.sampled)))
        step.run_ahead = 1
        return step


@pytest.mark.parametrize("fails_at", [2, 3, 5])
def test_the_engine_works_after_a_failed_launch_with_steps_in_flight(fails_at: int):
    real = engine()
    limits = replace(real.scheduler.limits, run_ahead=1)
    scheduler = Scheduler(limits)
    output = OutputProcessor(scheduler, TOKENIZER, ())
    built = Engine(real.model_info, scheduler, FakeRunner(fails_at, real.runner.masks), output, real.grammars)  # type: ignore[arg-type]
    run = Run(built)
    first, second, *_ = requests_of(real, max_tokens=9)
    run.add(first)
    run.finish()
    assert run.tokens(first.id) == [7] * 9
    assert built.stats().blocks.num_free == built.stats().blocks.num_blocks and not built.in_flight
    run.add(second)
    run.finish()
    assert run.tokens(second.id) == [7] * 9
