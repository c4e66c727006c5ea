"""What the start benchmark writes."""

from benchmarks.start import Start, describe, figures


def start(first_token: float) -> Start:
    """A run that took so long."""
    return Start(0.3, first_token - 0.1, first_token, 0.02, 1.5, 0.0, (f"took {first_token}",))


def test_the_medians_of_all_stages_are_written_and_where_the_time_of_the_middle_run_went():
    written = figures([start(3.0), start(1.0), start(2.0)])
    assert written["medians"]["first_token"] == 2.0
    assert written["runs"]["first_token"] == [3.0, 1.0, 2.0]
    assert written["timings"] == ("took 2.0",)


def test_a_run_is_one_line():
    line = describe(start(1.25))
    assert "first token 1.25 s" in line and "\n" not in line
