"""The figures of the benchmark `start`."""

from benchmarks.start import Start, describe, figures


def start(first_token: float) -> Start:
    """A run whose first token came after `first_token` seconds."""
    return Start(0.3, first_token - 0.1, first_token, 0.02, 1.5, 0.0, (f"took {first_token}",))


def test_figures_have_medians_and_the_timings_of_the_median_run():
    written = figures([start(3.0), start(1.0), start(2.0)])
    assert written["medians"]["first_token"] == 2.0
    assert written["runs"]["first_token"] == [3.0, 1.0, 2.0]
    assert written["timings"] == ("took 2.0",)


def test_a_run_is_one_line():
    line = describe(start(1.25))
    assert "first token 1.25 s" in line and "\n" not in line
