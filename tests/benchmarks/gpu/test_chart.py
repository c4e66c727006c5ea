"""The chart of the benchmark `gpu`: a roofline, and a dot for each step and kernel."""

from app.loadgen.plots import svg
from benchmarks.gpu.bounds import Work
from benchmarks.gpu.chart import chart, points
from benchmarks.gpu.figures import Figure, Results, SectionResult
from tests.benchmarks.gpu.samples import sample_results


def test_there_is_a_dot_for_each_step_and_kernel_with_operations():
    found = list(points(sample_results()))
    assert [point.kind for point in found] == ["decode step", *["decode attention"] * 3, "prefill attention"]
    picture = chart(sample_results())
    (((panel,),),) = picture.rows
    assert len(panel.curves) == 1 + len(found)
    assert panel.curves[-1].name == "prefill_attention 1 x 8192: 400 TFLOP/s"
    assert [key.words for key in picture.keys] == ["decode step", "decode attention", "prefill attention"]


def test_the_roofline_is_that_of_the_run():
    roof = chart(sample_results()).rows[0][0][0].curves[0].points
    assert roof[1] == (790e12 / 4.3e12, 790.0) and roof[2][1] == 790.0
    assert "measured in the same run" in chart(sample_results()).subtitle
    assert "of an H200" in chart(Results()).subtitle


def test_without_measurements_only_the_roofline_is_drawn():
    assert "TFLOP/s" in svg(chart(Results()))


def test_unknown_operations_are_drawn():
    figure = Figure("x", "us", (1e-9,), (Work(1.0, 1e30),), about={"operation": "strange"})
    assert "other kernels" in svg(chart(Results({}, {"S2": SectionResult("S2", [figure])})))
