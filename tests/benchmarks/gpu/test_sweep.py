"""The questions of design: each has a row, and small cases that run in the interpreter; answers find their claims."""

import os
import subprocess
import sys

import pytest
import torch

from app.kernels.triton.interpreter import is_interpreting
from benchmarks.gpu import sweep
from benchmarks.gpu.bounds import Shape
from benchmarks.gpu.cases import Heads
from benchmarks.gpu.claims import claims
from benchmarks.gpu.figures import Figure, Results, SectionResult
from benchmarks.gpu.kernel_cases.matmul import CUBLAS, OURS
from benchmarks.gpu.sections import QUESTIONS
from benchmarks.gpu.sweep_cases import attention, launches, products
from tests.house.source import ROOT

DEVICE, HEADS, FP32 = torch.device("cpu"), Heads(4, 2, 32), torch.float32
interpreted = pytest.mark.skipif(not is_interpreting(), reason="Triton compiles for the GPU here")
# Compiled for Hopper in a process in which Triton does not interpret.
COMPILE = """
import torch, triton
from tests.kernels.triton.compile_kernels import Driver
from benchmarks.gpu.sweep_cases import launches
triton.runtime.driver.set_active(Driver(90))
plain, dependent = (
    launches._link.run(torch.empty(132, device="meta"), DEPENDENT=is_dependent, grid=(132,), warmup=True, **options)
    for is_dependent, options in ((False, {}), (True, {"launch_pdl": True}))
)
print([compiled.asm["ptx"].count("griddepcontrol") for compiled in (plain, dependent)], dependent.metadata.launch_pdl)
"""


def figures() -> Results:
    """A made-up answer to everything that is asked."""
    names = [f"{row} {case.name}" for row in QUESTIONS for case in sweep.CASES[row]()]
    return Results({}, {"S6": SectionResult("S6", [Figure(name, "us", (2.0,)) for name in names])})


def outputs(calls) -> list[torch.Tensor]:
    """What calls have written."""
    for call in calls:
        call()
    return [call.keywords["out"] for call in calls]


def test_each_question_is_a_row_with_cases_of_different_names():
    assert list(sweep.CASES) == list(QUESTIONS)
    for cases in sweep.CASES.values():
        names = [case.name for case in cases()]
        assert len(names) > 0 and len(set(names)) == len(names)


def test_every_prediction_finds_its_answer():
    before, after = ([claim.value(results) for claim in claims()] for results in (Results(), figures()))
    assert before == [None] * len(before)
    assert len([value for value in after if value is not None]) == 9


@interpreted
def test_any_number_of_splits_gives_the_same_attention():
    found = []
    for num_splits in (1, 4):
        torch.manual_seed(0)
        found.append(outputs(attention.split_case(HEADS, 2, 40, num_splits, FP32).setup(DEVICE)[:1])[0])
    assert found[0].isfinite().all()
    torch.testing.assert_close(*found)


@interpreted
def test_room_for_more_chunks_changes_no_bit():
    found = []
    for num_chunks in (1, 8):
        torch.manual_seed(0)
        found += outputs(attention.chunk_case("x", HEADS, 20, 30, num_chunks, FP32).setup(DEVICE))
    assert found[0].isfinite().all() and torch.equal(*found)


@interpreted
def test_both_orders_give_the_same_attention_up_to_rounding():
    found = []
    for is_deterministic in (False, True):
        torch.manual_seed(0)
        found += outputs(attention.order_case(HEADS, 3, 40, is_deterministic, FP32).setup(DEVICE))
    torch.testing.assert_close(*found)


@interpreted
def test_both_ways_give_the_same_logits():
    found = []
    for by in (OURS, CUBLAS):
        torch.manual_seed(0)
        call = products.head("x", 1, 96, 64, by, FP32).setup(DEVICE)[0]
        call()
        found.append(call.keywords.get("out") if by == OURS else call.args[-1])
    torch.testing.assert_close(*found)


@interpreted
def test_both_ways_to_launch_a_layer_give_the_same_bits():
    found = []
    for is_dependent in (False, True):
        torch.manual_seed(0)
        call = products.layer("x", Shape(1, 16, 1, 1, 16, 16, 99, is_tied=True), is_dependent, FP32).setup(DEVICE)[0]
        call()
        found.append(call.args[-2])
    assert found[0].isfinite().all() and torch.equal(*found)


@interpreted
def test_each_program_of_a_chain_counts():
    plain, _ = launches.chains()
    (call,) = plain.setup(DEVICE)
    call()
    call()
    assert call.args[0].tolist() == [2.0] * 132


@pytest.mark.long
def test_a_dependent_launch_waits_for_the_kernel_before():
    environment = {name: value for name, value in os.environ.items() if name not in ("TRITON_INTERPRET", "LD_PRELOAD")}
    done = subprocess.run([sys.executable, "-c", COMPILE], capture_output=True, text=True, cwd=ROOT, env=environment)
    assert done.stdout.strip() == "[0, 2] True", done.stderr
