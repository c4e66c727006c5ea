"""The figures of the benchmark `start`."""

import pytest

from benchmarks import start as module
from benchmarks.__main__ import main
from benchmarks.start import Start, describe, figures, verdicts


def start(first_token: float) -> Start:
    """A run whose first token came after `first_token` seconds."""
    return Start(0.3, first_token - 0.1, first_token, 0.02, 1.5, 0.0, (f"took {first_token}",))


def test_figures_have_medians_and_the_timings_of_the_median_run():
    written = figures([start(3.0), start(1.0), start(2.0)], [])
    assert written["medians"]["first_token"] == 2.0
    assert written["runs"]["first_token"] == [3.0, 1.0, 2.0]
    assert written["timings"] == ("took 2.0",)


def test_a_run_is_one_line():
    line = describe(start(1.25))
    assert "first token 1.25 s" in line and "\n" not in line


def test_the_file_is_held_against_guide_of_the_same_run():
    guide, file = [start(2.0), start(1.0), start(9.0)], [start(2.4), start(2.6), start(2.7)]
    first_token, later = verdicts(guide, file)
    assert first_token.is_met and later.is_missed
    assert later.figure == pytest.approx(0.6)
    assert len(verdicts(guide, [])) == 1
    assert figures(guide, file)["file"]["medians"]["first_token"] == 2.6
    assert "file" not in figures(guide, [])


@pytest.mark.parametrize("is_there", [True, False])
def test_both_models_are_started_in_turn_and_the_first_starts_do_not_count(is_there, tmp_path, monkeypatch, capsys):
    started = []

    async def measure(*arguments: str) -> Start:
        started.append(arguments)
        return start(1.0 if len(started) > 1 + is_there else 99.0)

    monkeypatch.setattr(module, "measure", measure)
    monkeypatch.setattr(module, "RESULTS", tmp_path)
    monkeypatch.setattr(module.smollm2, "is_there", lambda: is_there)
    assert main(["start", "--repeat", "3"]) == 0
    assert len(started) == (8 if is_there else 4)
    assert started[:2] == ([(), (str(module.smollm2.local_file()),)] if is_there else [(), ()])
    assert ("left out" in capsys.readouterr().out) is not is_there
    assert (tmp_path / "start.json").exists()
