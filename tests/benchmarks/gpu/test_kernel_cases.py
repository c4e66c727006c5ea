"""Measured kernels: every kernel has cases, and each kind of case runs with small sizes in the interpreter."""

import inspect
import time
from importlib import import_module
from unittest.mock import create_autospec

import pytest
import torch

from benchmarks.gpu import stress, sweep
from benchmarks.gpu.bounds import Work
from benchmarks.gpu.cases import Case, Heads
from benchmarks.gpu.kernel_cases import (
    blocks,
    decode_attention,
    gate,
    logprobs,
    matmul,
    matvec,
    norm,
    penalties,
    piece_attention,
    prefill_attention,
    rotate,
    sample,
    softcap,
)
from benchmarks.gpu.kernels import measure_cases
from benchmarks.gpu.models import SHAPES
from benchmarks.gpu.sections import find_section
from benchmarks.gpu.tasks import CannotMeasure
from benchmarks.gpu.timing import num_copies, time_calls
from tests.house.source import APP, ROOT, imports, modules

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
HEADS = Heads(4, 2, 32)
KERNELS = "app.kernels.triton."
CASES = {
    **{row.name: import_module(f"benchmarks.gpu.kernel_cases.{row.name}").cases for row in find_section("S2").rows},
    **sweep.CASES,
}


def test_every_kernel_has_cases_and_a_row():
    # Every launch passes these options; see tests/kernels/triton/test_dependent.py.
    launching = {
        module.path.stem
        for module in modules(APP / "kernels/triton")
        if f"{KERNELS}dependent.launch_options" in imports(module.tree)
    }
    files = {file.stem for file in (ROOT / "benchmarks/gpu/kernel_cases").glob("*.py")} - {"__init__"}
    assert files == launching == {row.name for row in find_section("S2").rows}


@pytest.mark.parametrize("row", CASES)
def test_every_call_fits_the_kernel(row):
    """With the sizes of a GPU, over tensors of no memory."""
    for case in CASES[row]():
        call = case.setup(torch.device("meta"))[0]
        if not inspect.isbuiltin(call.func):  # torch's own
            inspect.signature(call.func).bind(*call.args, **call.keywords)


def test_cases_can_be_listed_without_a_gpu():
    for row in find_section("S2").rows:
        cases = list(import_module(f"benchmarks.gpu.kernel_cases.{row.name}").cases())
        assert cases and len({case.name for case in cases}) == len(cases)
        assert all(case.work.num_bytes >= 0 for case in cases)


def test_the_required_attention_shapes_are_among_the_cases():
    cases = list(decode_attention.cases())
    names = [case.name for case in cases]
    assert names[0] == "B=256 1024 D128 G4 bf16"
    large = [case for case in cases if case.about["tokens"] >= 65536 and case.about["kv"] == "bf16"]
    assert {case.about["head_dim"] for case in large} == {64, 128}
    (one,) = [case for case in cases if case.name == "B=64 1024 D128 G4 bf16"]
    assert one.work.num_bytes == 2 * 64 * 1024 * 8 * 128 * 2 + 2 * 64 * 32 * 128 * 2
    first = next(prefill_attention.cases())
    assert first.name == "1 x 8192 D128 G4 quire"
    assert first.work.operations == 4 * 8192 * 8192 / 2 * 32 * 128


def test_the_matrices_of_a_layer_are_those_of_the_model():
    shape = SHAPES["Llama-3.1-8B"]
    sizes = matmul.layer_shapes(shape)
    head = sizes.pop("head")
    assert shape.num_layers * sum(width * depth for width, depth in sizes.values()) == shape.linears
    assert head[0] * head[1] == shape.head


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(prefill_attention.case(2, 24, HEADS, dtype=torch.float32), id="prefill_attention"),
        pytest.param(prefill_attention.case(2, 24, HEADS, "torch SDPA", torch.float32), id="SDPA"),
        pytest.param(
            piece_attention.case(2, 600, 3, HEADS, torch.float32), id="piece_attention", marks=pytest.mark.long
        ),
        pytest.param(matmul.case("x", 3, 32, 64, matmul.CUBLAS, torch.float32), id="cuBLAS"),
        pytest.param(matvec.case("x", 1, 32, 64, is_gated=True, dtype=torch.float32), id="matvec gated"),
        pytest.param(matvec.case("x", 8, 32, 64, is_gated=False, dtype=torch.float32), id="matvec"),
        pytest.param(norm.case(2, 64, torch.float32), id="norm"),
        pytest.param(gate.case(2, 64, "gelu", torch.float32), id="gate"),
        pytest.param(softcap.case(2, 300), id="softcap"),
        pytest.param(rotate.case(2, HEADS, torch.float32), id="rotate"),
        *(pytest.param(sample.case(2, way, 300), id=f"sample {way}") for way in sample.WAYS),
        *(
            pytest.param(penalties.case(2, is_penalized=each, vocab=300), id=f"penalties {each}")
            for each in (True, False)
        ),
        pytest.param(logprobs.case(2, 5, 300), id="logprobs"),
        pytest.param(blocks.case(2, 2, 2, 16, torch.float32), id="blocks"),
    ],
)
def test_every_kind_of_case_runs(case, monkeypatch):
    for name in (
        "piece_attention",
        "norm",
        "gate",
        "softcap",
        "rotate",
        "matmul",
        "matvec",
        "sample",
        "penalties",
        "logprobs",
    ):
        monkeypatch.setattr(f"benchmarks.gpu.kernel_cases.{name}.num_copies", lambda *args, **options: 2)
    # The number of copies is fixed when the case is made; two are enough here.
    calls = case.setup(DEVICE)
    assert all(seconds > 0 for seconds in time_calls(calls[:2]))


@pytest.mark.long
def test_decode_attention_runs_as_in_the_engine(monkeypatch):
    monkeypatch.setattr(decode_attention, "num_copies", lambda num_bytes: 2)
    monkeypatch.setitem(decode_attention.DTYPES, "bf16", torch.float32)
    case = decode_attention.case(3, 40, HEADS, "bf16")
    calls = case.setup(DEVICE)
    assert len(calls) == 2
    outs = []
    for call in calls:
        call()
        outs.append(call.keywords["out"])
        assert outs[-1].isfinite().all()
    assert not torch.equal(*outs)  # each call has its own sequences


def test_kernels_of_rows_run():
    from benchmarks.gpu.kernel_cases import rows

    for setup in (rows._gather, rows._advance):
        time_calls(setup(2, DEVICE))


def test_inputs_are_rotated_over_more_than_twice_the_cache():
    assert num_copies(1 << 20) == 64
    assert num_copies(10 << 20) == 13
    assert num_copies(1 << 30) == 1
    assert num_copies(0) == 64


def test_a_failed_case_does_not_affect_others():
    def fails(place: torch.device):
        raise ValueError("no such kernel")

    cases = [
        Case("good", Work(1e3), lambda place: [lambda: None]),
        Case("bad", Work(1e3), fails),
        Case("better", Work(1e3, 1e3), lambda place: [lambda: None], {"by": "torch"}),
    ]
    figures = []
    with pytest.raises(RuntimeError, match="bad: ValueError: no such kernel"):
        figures.extend(measure_cases("op", cases, DEVICE, time.monotonic() + 60))
    assert [figure.name for figure in figures] == ["op good", "op better"]
    assert figures[0].about["note"].endswith("GB/s") and figures[0].about["by"] == "quire"
    assert figures[1].about["operation"] == "op" and figures[1].about["by"] == "torch"
    tried = []
    with pytest.raises(RuntimeError, match="bad"):
        list(
            measure_cases("op", (tried.append(case) or case for case in [cases[1]] * 9), DEVICE, time.monotonic() + 60)
        )
    assert len(tried) == 3
    with pytest.raises(CannotMeasure, match="no time was left from good on"):
        list(measure_cases("op", cases, DEVICE, time.monotonic()))


SMALL = stress.Sizes(max_rows=4, max_context=200, dtype=torch.float32)


def test_the_calls_of_the_stress_fit_the_kernel(monkeypatch):
    kernel = create_autospec(stress.decode_attention, side_effect=lambda *given, out, **options: out.zero_())
    monkeypatch.setattr(stress, "decode_attention", kernel)
    assert stress.stress(DEVICE, 3, (HEADS,), SMALL, time.monotonic() + 100).values == (0.0,)
    assert kernel.call_count == 3 * (stress.REPEATS + 1)


@pytest.mark.long
def test_decode_attention_has_equal_bits_in_one_launch_and_in_two():
    figure = stress.stress(DEVICE, 4, (HEADS,), SMALL, time.monotonic() + 100)
    assert figure.values == (0.0,)
    assert figure.about["batches"] == 4


@pytest.mark.long
def test_different_bits_are_counted(monkeypatch):
    count = iter(range(100))
    real = stress.decode_attention

    def broken(*args, out, **options):
        real(*args, out=out, **options)
        out += 0.1 * (next(count) % 3)

    monkeypatch.setattr(stress, "decode_attention", broken)
    figure = stress.stress(DEVICE, 2, (HEADS,), SMALL, time.monotonic() + 100)
    assert figure.about["other_bits_when_repeated"] == 2
    assert figure.about["other_than_two_launches"] == 2
    assert figure.values == (4.0,)
