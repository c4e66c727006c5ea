"""The figures of rounds: medians, JSON, and what is judged where."""

import json

import pytest

from app.observe.terminal import own_terminal
from benchmarks.gpu_host.report import EXCUSE, FIGURES, judged, progress_line, report, to_json
from benchmarks.gpu_host.rounds import Offline, Round, Served
from benchmarks.gpu_host.thread_times import ThreadTimes

NAME = "Qwen3-0.6B, 256 requests"


def made(served_s: float, loop_s: float) -> Round:
    threads = ThreadTimes(loop_s, 2.0, 0.1, 0.5)
    return Round(1000, Offline(10.0, 9.0, 100), Served(served_s, 110, threads, 1.0, 500, 5.0, 9.0, 30.0))


@pytest.mark.parametrize(
    ("served_s", "loop_s", "cores", "says"),
    [
        (10.1, 3.0, 2, ["met", "met"]),
        (20.0, 3.0, 2, [EXCUSE, "met"]),
        (20.0, 3.0, 3, ["MISSED by 45 %", "met"]),
        (20.0, 7.9, 2, ["MISSED by 45 %", "MISSED by 10 %"]),
    ],
)
def test_a_share_is_excused_only_where_the_clients_have_no_core_and_the_host_hides(served_s, loop_s, cores, says):
    found = judged(NAME, [made(served_s, loop_s)], cores)
    assert [str(verdict).rpartition(": ")[2] for verdict in found] == says


def test_the_table_has_a_column_for_each_cell_and_a_line_for_each_figure():
    rounds = {NAME: [made(10.0, 3.0), made(12.5, 4.0), made(20.0, 5.0)], "other": [made(10.0, 3.0)]}
    lines = report(rounds, own_terminal())
    assert len(lines) == 1 + len(FIGURES)
    (share,) = (line for line in lines if line.startswith("served, % of offline"))
    assert share.split()[-3:] == ["80", "(50-100)", "100"]
    assert "served tok/s 100" in progress_line(rounds[NAME][0])


def test_all_rounds_are_written():
    written = json.loads(json.dumps(to_json({NAME: [made(10.0, 3.0)]})))
    assert written[NAME][0]["served"]["threads"]["engine"] == 2.0
    assert written[NAME][0]["figures"]["event loop, CPU us/token"] == 3000
