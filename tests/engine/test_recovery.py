"""After a step that raised no request loses a token, and only the culprits fail."""

from __future__ import annotations

import pytest
import torch

from app.contract.errors import EngineFailed
from app.contract.events import Finished, RequestFailed, TokenDelta
from app.contract.requests import EngineRequest
from app.engine.engine import Engine
from app.engine.recovery import MAX_FAULTS, is_device_broken, is_out_of_memory
from app.engine.schedule.step_plan import StepPlan
from tests.checkpoints import tiny
from tests.engine.culprits import Culprits
from tests.engine.driving import Run, build, request
from tests.engine.execute.faulty_runner import FaultyRunner
from tests.engine.execute.injected_faults import InjectedFaults
from tests.engine.schedule.open_requests import num_open

NUM_REQUESTS = 8
HOOKS = ("before_launch", "before_transfer", "before_sample", "before_result")


def prompt_of(number: int) -> tuple[int, ...]:
    return tuple(range(10 + 20 * number, 15 + 24 * number))


def engine(faults: FaultyRunner | None = None, **settings: object) -> Engine:
    defaults = {"max_num_batched_tokens": 48, "max_num_seqs": 16, "itl_target": 0.0}
    return build(tiny("Llama"), faults=faults, **{**defaults, **settings})


def requests_of(built: Engine) -> list[EngineRequest]:
    """Greedy and seeded requests, several choices, beams: everything that keeps state between steps."""
    kinds: list[dict[str, object]] = [
        {},
        {"temperature": 0.9, "n": 3},
        {"frequency_penalty": 1.0},
        {"temperature": 0.9},
    ]
    kinds += [{"temperature": None, "use_beam_search": True, "beam_width": 3, "ignore_eos": False}]
    return [
        request(
            built, str(number), prompt_of(number), **{"seed": number, "max_tokens": 12, **kinds[number % len(kinds)]}
        )
        for number in range(NUM_REQUESTS)
    ]


def outputs(run: Run) -> dict[tuple[str, int], list[int]]:
    """Token ids by request and choice."""
    found: dict[tuple[str, int], list[int]] = {}
    for event in run.events:
        if isinstance(event, TokenDelta):
            found.setdefault((event.request_id, event.choice), []).extend(event.token_ids)
    return found


def run_requests(faults: FaultyRunner | None = None, **settings: object) -> Run:
    """Run all requests in an engine with these faults; its integrity is checked after every step."""
    built = engine(faults, **settings)
    run = Run(built)
    for each in requests_of(built):
        run.add(each)
        run.step(2)
    run.finish()
    stats = built.stats()
    assert stats.blocks.num_free == stats.blocks.num_blocks and not num_open(built.scheduler)
    assert built.output.num_open == 0
    recovery = built.recovery
    assert not (recovery._hit or recovery._alone or recovery._probes) and built.scheduler.preemption.allowed is None
    return run


@pytest.fixture(scope="module")
def expected() -> dict[tuple[str, int], list[int]]:
    return outputs(run_requests())


@pytest.mark.parametrize("hook", ["before_launch", "before_sample", "before_result"])
@pytest.mark.parametrize("step", [1, 2, 5, 9, 16, 23])
def test_no_request_loses_a_token_in_one_fault(hook, step, expected, caplog):
    faults = InjectedFaults(**{hook: {step}})
    run = run_requests(faults, num_kv_blocks=40)
    assert outputs(run) == expected
    assert run.engine.stats().recovery.num_faults == 1 and run.engine.stats().recovery.num_culprits == 0
    assert all(isinstance(end, Finished) for end in run.events if not isinstance(end, TokenDelta))
    assert "is replayed" in caplog.text


@pytest.mark.parametrize("call", [1, 2, 4])
def test_no_request_loses_a_token_in_a_fault_of_a_transfer(call, expected, caplog):
    """Blocks that a failed step should copy count as not copied, also in host memory."""
    run = run_requests(InjectedFaults(before_transfer={call}), num_kv_blocks=24, swap_space=2**21)
    assert outputs(run) == expected and run.engine.stats().recovery.num_faults == 1


def test_no_request_loses_a_token_in_consecutive_faults(expected, caplog):
    run = run_requests(InjectedFaults(before_sample={4, 5, 6}), num_kv_blocks=60)
    assert outputs(run) == expected


@pytest.mark.parametrize("culprits", [{0}, {3}, {7}, {1}, {4}, {2, 5}, {0, 1, 6}])
@pytest.mark.parametrize("position", [0, 3, 400])
def test_only_the_culprits_fail_and_other_requests_keep_their_tokens(culprits, position, expected, caplog):
    """Position 400 is limited to the middle of the output."""
    at = {prompt_of(number): min(position, len(prompt_of(number)) + 4) for number in culprits}
    run = run_requests(Culprits(at), num_kv_blocks=60)
    for number in range(NUM_REQUESTS):
        end = [event for event in run.of(str(number)) if not isinstance(event, TokenDelta)]
        if number in culprits:
            assert len(end) == 1 and isinstance(end[0], RequestFailed) and end[0].error.code == "engine_error"
            assert "culprit" not in end[0].error.message, "the cause is only in the log"
        else:
            assert end and all(isinstance(each, Finished) for each in end)
    good = {key: tokens for key, tokens in expected.items() if int(key[0]) not in culprits}
    assert {key: tokens for key, tokens in outputs(run).items() if int(key[0]) not in culprits} == good
    assert run.engine.stats().recovery.num_culprits == len(culprits)


def test_a_request_that_runs_alone_is_retried_once_and_then_fails(caplog):
    built = engine(Culprits({prompt_of(1): 0}))
    run = Run(built)
    run.add(requests_of(built)[1])
    run.finish()
    assert isinstance(run.end("1"), RequestFailed)
    assert built.stats().recovery.num_faults == 2


def test_a_request_whose_tokens_were_computed_in_between_is_no_culprit(caplog):
    """It is alone in two failed steps, with the same tokens, because it was preempted between them."""
    built = engine(InjectedFaults(before_sample={2, 6}), max_num_batched_tokens=32, enable_prefix_caching=False)
    run = Run(built)
    run.add(request(built, "a", range(10, 90), max_tokens=3))
    run.step(4)
    (group,) = built.scheduler.groups
    assert (group.num_computed, built.stats().recovery.num_faults) == (64, 1)
    built.scheduler.preemption.preempt(group)
    run.finish()
    assert isinstance(run.end("a"), Finished)
    counts = built.stats().recovery
    assert (counts.num_faults, counts.num_culprits) == (2, 0)


def test_two_requests_that_only_fail_together_both_finish(expected, caplog):
    faults = Culprits({prompt_of(0): 6, prompt_of(3): 6}, together=True)
    run = run_requests(faults, num_kv_blocks=60)
    assert outputs(run) == expected and 1 < faults.num_raised < MAX_FAULTS


def test_a_paused_suspect_does_not_block_other_requests(expected, caplog):
    faults = InjectedFaults(before_sample={6, 7})
    built = engine(faults)
    run = Run(built)
    run.add(*requests_of(built))
    run.step(7)
    built.pause("0")
    run.finish()
    assert {key for key in outputs(run) if key[0] != "0"} == {key for key in expected if key[0] != "0"}
    built.resume("0")
    run.finish()
    assert outputs(run) == expected


def test_an_abort_of_the_probe_ends_the_restriction(expected, caplog):
    built = engine(Culprits({prompt_of(0): 6}))
    run = Run(built)
    run.add(*requests_of(built))
    while built.stats().recovery.num_faults < 3:
        run.step()
    for number in range(4):
        run.events += built.abort(str(number), 0.0)
    run.finish()
    assert {key: tokens for key, tokens in outputs(run).items() if int(key[0]) >= 4} == {
        key: tokens for key, tokens in expected.items() if int(key[0]) >= 4
    }
    assert built.scheduler.preemption.allowed is None


def test_out_of_memory_halves_the_budget_and_it_grows_back(expected, caplog):
    run = run_requests(InjectedFaults(MemoryError, before_sample={3}))
    assert outputs(run) == expected
    assert "limited to 24 tokens" in caplog.text
    later = Run(run.engine)
    later.add(request(run.engine, "later", range(4, 9), max_tokens=120))
    later.finish()
    assert run.engine.scheduler.budget.tokens == 48


def test_what_counts_as_out_of_memory():
    assert is_out_of_memory(MemoryError())
    assert is_out_of_memory(RuntimeError("[enforce fail at alloc_cpu.cpp:121] DefaultCPUAllocator: can't allocate"))
    assert not is_out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    assert not is_out_of_memory(ValueError("alloc"))


def test_only_errors_that_stay_count_as_a_broken_device():
    advice = "\nCompile with `TORCH_USE_CUDA_DSA` to enable device-side assertions."
    for words in (
        "CUDA error: an illegal memory access was encountered",
        "Triton Error [CUDA]: misaligned address",
        "CUDA error: uncorrectable ECC error encountered",
        "CUDA error: device-side assert triggered",
        "CUDA error: unspecified launch failure",
    ):
        assert is_device_broken(RuntimeError(words + advice)) and is_device_broken(torch.AcceleratorError(words))
    for error in (
        RuntimeError("CUDA error: out of memory" + advice),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 MiB"),
        RuntimeError("CUDA error: operation not permitted when stream is capturing" + advice),
        RuntimeError("unknown error"),
        ValueError("CUDA error: unknown error"),
    ):
        assert not is_device_broken(error)


def test_an_engine_with_too_many_faults_gives_up(caplog):
    class EverySecondLaunch(FaultyRunner):
        def __init__(self) -> None:
            self.num_launches = 0

        def before_launch(self, plan: object) -> None:
            self.num_launches += 1
            if self.num_launches % 2 == 0:
                raise RuntimeError("every second launch")

    built = engine(EverySecondLaunch())
    run = Run(built)
    with pytest.raises(EngineFailed, match="30 steps failed within 60 s"):
        for number in range(NUM_REQUESTS):
            run.add(request(built, f"long {number}", prompt_of(number), max_tokens=100))
        run.finish()


def test_culprits_do_not_count_towards_giving_up(caplog):
    """A hostile client must not be able to end the server with requests that make steps raise."""
    faults = Culprits({prompt_of(3): 0})
    built = engine(faults)
    for _ in range(2 * MAX_FAULTS):
        run = Run(built)
        run.add(request(built, "bad", prompt_of(3), max_tokens=4))
        run.finish()
        assert isinstance(run.end("bad"), RequestFailed)
    assert built.stats().recovery.num_culprits == 2 * MAX_FAULTS


class TooLittleMemory(FaultyRunner):
    """Steps of more than `num_tokens` tokens run out of memory."""

    def __init__(self, num_tokens: int) -> None:
        self._num_tokens = num_tokens

    def before_sample(self, plan: StepPlan) -> None:
        if plan.num_tokens > self._num_tokens:
            raise MemoryError


@pytest.mark.parametrize("num_requests", [1, 4])
def test_out_of_memory_fails_no_request_while_steps_can_be_smaller(num_requests, caplog):
    """A prompt of several chunks runs out of memory several times, always at its first tokens."""
    built = engine(TooLittleMemory(10), max_num_batched_tokens=96)
    run = Run(built)
    run.add(*(request(built, str(number), range(4 + number, 94 + number)) for number in range(num_requests)))
    run.finish()
    assert all(isinstance(run.end(str(number)), Finished) for number in range(num_requests))
    assert built.stats().recovery.num_faults >= 4 and built.stats().recovery.num_culprits == 0


def test_slightly_too_little_memory_does_not_end_the_engine(caplog):
    built = engine(TooLittleMemory(40), max_num_batched_tokens=64)
    for number in range(40):
        run = Run(built)
        run.add(*(request(built, f"{number}.{each}", range(4 + each, 60 + each), max_tokens=30) for each in range(8)))
        run.finish()
        assert all(isinstance(run.end(f"{number}.{each}"), Finished) for each in range(8))
    assert built.stats().recovery.num_faults < 20


def test_requests_that_end_before_they_gain_a_token_are_forgotten(caplog):
    built = engine(InjectedFaults(before_sample=set(range(1, 60, 2))))
    for number in range(20):
        built.add(request(built, str(number), prompt_of(number % 8)))
        built.step(0.0)
        built.abort(str(number), 0.0)
    run = Run(built)
    run.add(request(built, "last", prompt_of(1)))
    run.finish()
    assert not built.recovery._hit and not built.recovery._alone


def test_an_engine_gives_up_if_every_step_fails(caplog):
    class EveryStep(FaultyRunner):
        def before_sample(self, plan: StepPlan) -> None:
            raise RuntimeError("always")

    built = engine(EveryStep())
    run = Run(built)
    run.add(*requests_of(built))
    with pytest.raises(EngineFailed, match="even the canary of a single token: RuntimeError"):
        run.finish()
