"""Sections run in processes of their own; a crash or a hang does not affect other rows and figures."""

import json
import os
import sys
import time
from pathlib import Path

import pytest

from benchmarks.gpu.events import EventReader, EventWriter
from benchmarks.gpu.figures import Figure, Results, SectionResult
from benchmarks.gpu.program import run_rows
from benchmarks.gpu.runs import SectionRun, run_together
from benchmarks.gpu.sections import BUDGET_S, SECTIONS, WARM_UP, Row, Section, find_section
from benchmarks.gpu.tasks import CannotMeasure, Task

pytestmark = pytest.mark.long

FAKE = Path(__file__).with_name("fake_section.py")


def command(section, rows, events, seconds) -> list[str]:
    """The command line of the fake section."""
    return [sys.executable, str(FAKE), str(events), *rows]


def run(
    tmp_path: Path, *names: str, seconds: float = 30.0, cap_s: float = 20.0, say=lambda line: None
) -> SectionResult:
    """Run a section of these rows."""
    section = Section("S9", "fake", seconds, "fake", tuple(Row(name, cap_s) for name in names))
    return SectionRun(section, command, tmp_path, seconds, dict(os.environ), say).run()


def pids(result: SectionResult) -> dict[str, int]:
    """The process that measured each row."""
    return {figure.name.removesuffix(" first"): int(figure.values[1]) for figure in result.figures}


def test_rows_share_a_process_and_are_reported_one_by_one(tmp_path):
    lines: list[str] = []
    result = run(tmp_path, "a", "b", say=lines.append)
    assert result.failures == {}
    assert len(set(pids(result).values())) == 1
    assert lines == ["S9 a ...", *lines[1:2], "S9 b ...", *lines[3:]]
    assert lines[1].startswith("S9 a first: ")


def test_a_crash_fails_its_row_only_and_keeps_its_figures(tmp_path):
    result = run(tmp_path, "crash", "b")
    assert "code -11" in result.failures["crash"] and "about to crash" in result.failures["crash"]
    assert set(pids(result)) == {"crash", "b"}
    assert len(set(pids(result).values())) == 2


@pytest.mark.parametrize("row", ["crash behind others", "raise behind others"])
def test_a_row_that_failed_after_others_is_retried_alone(tmp_path, row):
    result = run(tmp_path, "a", row, "b")
    assert result.failures == {}
    found = pids(result)
    assert found[row] == found["b"] != found["a"]
    assert [figure.name for figure in result.figures].count(f"{row} first") == 1


def test_a_row_that_always_fails_is_tried_twice(tmp_path):
    lines: list[str] = []
    result = run(tmp_path, "a", "raise", "b", say=lines.append)
    assert result.failures["raise"].endswith("RuntimeError: CUDA error")
    assert sum(line.startswith("S9 raise ...") for line in lines) == 2
    assert set(pids(result)) == {"a", "raise", "b"}


def test_a_row_that_cannot_be_measured_is_left_out_and_the_process_continues(tmp_path):
    result = run(tmp_path, "a", "cannot", "b")
    assert (result.failures, result.left_out) == ({}, {"cannot": "it is not installed"})
    assert len(set(pids(result).values())) == 1


def test_a_row_that_hangs_is_killed_at_its_cap_with_its_children(tmp_path):
    began = time.monotonic()
    result = run(tmp_path, "a", "hang", "b", cap_s=1.5)
    assert time.monotonic() - began < 12
    assert "cap of 1.5 s" in result.failures["hang"]
    assert set(pids(result)) == {"a", "hang", "b"}
    orphan = int((tmp_path / "orphan").read_text())
    assert not is_alive(orphan)


def is_alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_section_ends_at_its_time_limit_and_lists_the_rows_left(tmp_path):
    result = run(tmp_path, "a", "hang", "b", "c", seconds=1.5)
    assert result.failures == {}
    assert result.left_out == dict.fromkeys(("hang", "b", "c"), "no time was left")
    assert {"a", "hang"} <= {figure.name.removesuffix(" first") for figure in result.figures}
    assert "a" in pids(result)
    assert 1.4 < result.seconds < 8


def test_a_failure_is_reported_if_no_time_is_left_to_retry(tmp_path):
    result = run(tmp_path, "a", "hang behind others", "b", seconds=1.5, cap_s=1.0)
    assert "cap of 1 s" in result.failures["hang behind others"]
    result = run(tmp_path, "a", "raise", "hang", seconds=2.5)
    assert "CUDA error" in result.failures["raise"]
    assert result.left_out == {"hang": "no time was left"}


def test_a_truncated_line_of_events_is_ignored(tmp_path):
    result = run(tmp_path, "truncated", "b")
    assert set(pids(result)) == {"truncated", "b"}
    assert "code 9" in result.failures["truncated"]


def test_a_process_may_exit_between_rows(tmp_path):
    result = run(tmp_path, "spent", "b")
    assert result.failures == {}
    assert len(set(pids(result).values())) == 2


def test_a_cap_is_counted_from_the_beginning_of_its_row(tmp_path):
    result = run(tmp_path, "slow", "slower", "a", cap_s=2.0)
    assert result.failures == {}


def test_a_section_whose_process_fails_at_once_is_reported(tmp_path):
    result = run(tmp_path, "never begins", "b")
    assert result.failures == dict.fromkeys(("never begins", "b"), "the process ended at once: no rows today")


def test_rows_can_run_concurrently(tmp_path):
    section = Section("S9", "fake", 9, "fake", tuple(Row(name, 9) for name in ("slow", "raise", "crash", "a", "hang")))
    began = time.monotonic()
    result = run_together(section, command, tmp_path, 3.0, dict(os.environ), lambda line: None)
    assert time.monotonic() - began < 9
    assert len(set(pids(result).values())) == len(pids(result))
    assert set(result.failures) == {"raise", "crash", "hang"}
    assert "not done after 3 s" in result.failures["hang"]
    assert not is_alive(int((tmp_path / "orphan").read_text()))


def test_events_are_passed_through_a_file(tmp_path):
    writer, reader = EventWriter(tmp_path / "events"), EventReader(tmp_path / "events")
    assert reader.read() == []
    writer.begin("a")
    writer.failed("a", "x" * 10_000)
    begin, failed = reader.read()
    assert begin == {"event": "begin", "row": "a"}
    assert len(failed["said"]) == 4000 and failed["is_final"] is False
    assert reader.read() == []
    reader.close()


class FakeModule:
    """A module of a section, with rows that measure, fail, or cannot be measured."""

    LEAVES_THREADS = ("threads",)

    def measure(self, task: Task):
        yield Figure(task.row, "ms", (task.deadline,))
        if task.row == "fails":
            raise ValueError("it does")
        if task.row == "cannot":
            raise CannotMeasure("not here")


def run_fake_rows(tmp_path: Path, *rows: str) -> tuple[int, list[tuple[str, str]]]:
    """The exit code and the events of a process."""
    file = tmp_path / "events"
    task = Task("", tmp_path, Results(), deadline=1e12)
    code = run_rows(FakeModule(), rows, task, EventWriter(file), {"a": 5.0})
    events = [json.loads(line) for line in file.read_text().splitlines()]
    return code, [(event["event"], event["row"]) for event in events]


def test_a_process_exits_after_the_first_failed_row(tmp_path):
    assert run_fake_rows(tmp_path, "a", "cannot", "fails", "b") == (
        1,
        [
            ("begin", "a"), ("figure", "a"), ("end", "a"),
            ("begin", "cannot"), ("figure", "cannot"), ("failed", "cannot"),
            ("begin", "fails"), ("figure", "fails"), ("failed", "fails"),
        ],
    )  # fmt: skip


def test_a_process_with_leftover_threads_is_not_reused(tmp_path):
    assert run_fake_rows(tmp_path, "threads", "b") == (
        0,
        [("begin", "threads"), ("figure", "threads"), ("end", "threads")],
    )


def test_sections_are_ordered_by_importance_and_fit_the_budget():
    assert [section.name for section in SECTIONS] == ["S0", "S3", "S4", "S1", "S2", "S5", "S6", "S7"]
    assert [section.cap_s for section in SECTIONS] == [20, 100, 300, 40, 90, 120, 150, 250]
    assert sum(section.cap_s for section in (WARM_UP, *SECTIONS)) == BUDGET_S == 1130
    for section in (*SECTIONS, WARM_UP):
        assert find_section(section.name) == section
        assert len({row.name for row in section.rows}) == len(section.rows)
        assert all(row.cap_s <= section.cap_s for row in section.rows)
