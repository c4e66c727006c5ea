"""After a step that raised: nobody loses a token, and only who is to blame fails."""

from __future__ import annotations

import pytest
import torch

from app.contract.errors import EngineFailed
from app.contract.events import Finished, RequestFailed, TokenDelta
from app.contract.requests import EngineRequest
from app.engine.engine import Engine
from app.engine.faults import FaultPlan
from app.engine.recovery import MAX_FAULTS, is_device_broken, is_out_of_memory
from app.engine.schedule.step_plan import StepPlan
from tests.checkpoints import tiny
from tests.engine.driving import Run, build, request
from tests.engine.execute.faulty import Faulty
from tests.engine.poison import Poison

NUM_REQUESTS = 8
HOOKS = ("before_launch", "before_transfer", "before_sample", "before_result")


def prompt_of(number: int) -> tuple[int, ...]:
    return tuple(range(10 + 20 * number, 15 + 24 * number))


def engine(faults: FaultPlan | None = None, **settings: object) -> Engine:
    defaults = {"max_num_batched_tokens": 48, "max_num_seqs": 16, "itl_target": 0.0}
    return build(tiny("Llama"), faults=faults, **{**defaults, **settings})


def requests_of(built: Engine) -> list[EngineRequest]:
    """Greedy and seeded ones, several choices, beams: everything that holds state over a step."""
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


def answers(run: Run) -> dict[tuple[str, int], list[int]]:
    """Token ids by request and choice."""
    found: dict[tuple[str, int], list[int]] = {}
    for event in run.events:
        if isinstance(event, TokenDelta):
            found.setdefault((event.request_id, event.choice), []).extend(event.token_ids)
    return found


def served(faults: FaultPlan | None = None, **settings: object) -> Run:
    """Everybody's answers from an engine with these faults; the books are checked after every step."""
    built = engine(faults, **settings)
    run = Run(built)
    for each in requests_of(built):
        run.add(each)
        run.step(2)
    run.finish()
    stats = built.stats()
    assert stats.num_free_blocks == stats.num_blocks and not built.scheduler.has_work
    assert built.output.num_open == 0
    recovery = built.recovery
    assert not (recovery._hit or recovery._alone or recovery._probes) and built.scheduler.preemption.allowed is None
    return run


@pytest.fixture(scope="module")
def expected() -> dict[tuple[str, int], list[int]]:
    return answers(served())


@pytest.mark.parametrize("hook", ["before_launch", "before_sample", "before_result"])
@pytest.mark.parametrize("step", [1, 2, 5, 9, 16, 23])
def test_one_fault_costs_nobody_a_token(hook, step, expected, caplog):
    faults = Faulty(**{hook: {step}})
    run = served(faults, num_kv_blocks=40)
    assert answers(run) == expected
    assert run.engine.stats().num_faults == 1 and run.engine.stats().num_failed_requests == 0
    assert all(isinstance(end, Finished) for end in run.events if not isinstance(end, TokenDelta))
    assert "is replayed" in caplog.text


@pytest.mark.parametrize("call", [1, 2, 4])
def test_a_fault_while_blocks_are_moved_costs_nobody_a_token(call, expected, caplog):
    """What a failed step was to copy counts as not copied, in host memory too."""
    run = served(Faulty(before_transfer={call}), num_kv_blocks=24, swap_space=2**21)
    assert answers(run) == expected and run.engine.stats().num_faults == 1


def test_faults_in_a_row_that_go_away_again_cost_nobody_a_token(expected, caplog):
    run = served(Faulty(before_sample={4, 5, 6}), num_kv_blocks=60)
    assert answers(run) == expected


@pytest.mark.parametrize("culprits", [{0}, {3}, {7}, {1}, {4}, {2, 5}, {0, 1, 6}])
@pytest.mark.parametrize("position", [0, 3, 400])
def test_only_the_culprits_fail_and_the_others_go_on_with_identical_tokens(culprits, position, expected, caplog):
    """400: beyond the prompt, in the middle of the answer."""
    at = {prompt_of(number): min(position, len(prompt_of(number)) + 4) for number in culprits}
    run = served(Poison(at), num_kv_blocks=60)
    for number in range(NUM_REQUESTS):
        end = [event for event in run.of(str(number)) if not isinstance(event, TokenDelta)]
        if number in culprits:
            assert len(end) == 1 and isinstance(end[0], RequestFailed) and end[0].error.code == "engine_error"
            assert "poison" not in end[0].error.message, "what went wrong inside is for the log"
        else:
            assert end and all(isinstance(each, Finished) for each in end)
    good = {key: tokens for key, tokens in expected.items() if int(key[0]) not in culprits}
    assert {key: tokens for key, tokens in answers(run).items() if int(key[0]) not in culprits} == good
    assert run.engine.stats().num_failed_requests == len(culprits)


def test_a_request_alone_gets_a_second_try_and_then_fails(caplog):
    built = engine(Poison({prompt_of(1): 0}))
    run = Run(built)
    run.add(requests_of(built)[1])
    run.finish()
    assert isinstance(run.end("1"), RequestFailed)
    assert built.stats().num_faults == 2


def test_two_that_only_fail_together_both_end(expected, caplog):
    faults = Poison({prompt_of(0): 6, prompt_of(3): 6}, together=True)
    run = served(faults, num_kv_blocks=60)
    assert answers(run) == expected and 1 < faults.num_raised < MAX_FAULTS


def test_a_paused_suspect_holds_nobody_up(expected, caplog):
    faults = Faulty(before_sample={6, 7})
    built = engine(faults)
    run = Run(built)
    run.add(*requests_of(built))
    run.step(7)
    built.pause("0")
    run.finish()
    assert {key for key in answers(run) if key[0] != "0"} == {key for key in expected if key[0] != "0"}
    built.resume("0")
    run.finish()
    assert answers(run) == expected


def test_an_abort_of_the_probe_ends_the_restriction(expected, caplog):
    built = engine(Poison({prompt_of(0): 6}))
    run = Run(built)
    run.add(*requests_of(built))
    while built.stats().num_faults < 3:
        run.step()
    for number in range(4):
        run.events += built.abort(str(number), 0.0)
    run.finish()
    assert {key: tokens for key, tokens in answers(run).items() if int(key[0]) >= 4} == {
        key: tokens for key, tokens in expected.items() if int(key[0]) >= 4
    }
    assert built.scheduler.preemption.allowed is None


def test_out_of_memory_halves_the_budget_and_it_grows_back(expected, caplog):
    run = served(Faulty(MemoryError, before_sample={3}))
    assert answers(run) == expected
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


def test_an_engine_that_fails_again_and_again_gives_up(caplog):
    class Every(FaultPlan):
        def __init__(self) -> None:
            self.num_launches = 0

        def before_launch(self, plan: object) -> None:
            self.num_launches += 1
            if self.num_launches % 2 == 0:
                raise RuntimeError("now and then")

    built = engine(Every())
    run = Run(built)
    with pytest.raises(EngineFailed, match="30 steps failed within 60 s"):
        for number in range(NUM_REQUESTS):
            run.add(request(built, f"long {number}", prompt_of(number), max_tokens=100))
        run.finish()


def test_culprits_do_not_count_towards_giving_up(caplog):
    """A hostile client must not be able to end the server with requests that make steps raise."""
    faults = Poison({prompt_of(3): 0})
    built = engine(faults)
    for _ in range(2 * MAX_FAULTS):
        run = Run(built)
        run.add(request(built, "bad", prompt_of(3), max_tokens=4))
        run.finish()
        assert isinstance(run.end("bad"), RequestFailed)
    assert built.stats().num_failed_requests == 2 * MAX_FAULTS


class TooLittleMemory(FaultPlan):
    """Steps of more than so many tokens run out of memory."""

    def __init__(self, num_tokens: int) -> None:
        self._num_tokens = num_tokens

    def before_sample(self, plan: StepPlan) -> None:
        """See FaultPlan."""
        if plan.num_tokens > self._num_tokens:
            raise MemoryError


@pytest.mark.parametrize("num_requests", [1, 4])
def test_out_of_memory_blames_nobody_while_smaller_steps_can_be_tried(num_requests, caplog):
    """A prompt that is computed in chunks of a fifth runs out of memory several times, always at its first tokens."""
    built = engine(TooLittleMemory(10), max_num_batched_tokens=96)
    run = Run(built)
    run.add(*(request(built, str(number), range(4 + number, 94 + number)) for number in range(num_requests)))
    run.finish()
    assert all(isinstance(run.end(str(number)), Finished) for number in range(num_requests))
    assert built.stats().num_faults >= 4 and built.stats().num_failed_requests == 0


def test_a_little_too_little_memory_does_not_end_the_server(caplog):
    built = engine(TooLittleMemory(40), max_num_batched_tokens=64)
    for number in range(40):
        run = Run(built)
        run.add(*(request(built, f"{number}.{each}", range(4 + each, 60 + each), max_tokens=30) for each in range(8)))
        run.finish()
        assert all(isinstance(run.end(f"{number}.{each}"), Finished) for each in range(8))
    assert built.stats().num_faults < 20


def test_requests_that_end_before_they_gain_a_token_are_forgotten(caplog):
    built = engine(Faulty(before_sample=set(range(1, 60, 2))))
    for number in range(20):
        built.add(request(built, str(number), prompt_of(number % 8)))
        built.step(0.0)
        built.abort(str(number), 0.0)
    run = Run(built)
    run.add(request(built, "last", prompt_of(1)))
    run.finish()
    assert not built.recovery._hit and not built.recovery._alone


def test_an_engine_whose_every_step_fails_gives_up_though_each_request_could_be_blamed(caplog):
    class Broken(FaultPlan):
        def before_sample(self, plan: StepPlan) -> None:
            raise RuntimeError("always")

    built = engine(Broken())
    run = Run(built)
    run.add(*requests_of(built))
    with pytest.raises(EngineFailed, match="even the canary of a single token: RuntimeError"):
        run.finish()
