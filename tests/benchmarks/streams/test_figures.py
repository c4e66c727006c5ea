"""Figures computed from counts: costs per event, faults, verdicts; and the JSON."""

import json
import math

import pytest

from benchmarks.limits import Verdict, limits
from benchmarks.streams.cells import make_cells
from benchmarks.streams.figures import CellFigures, Window, faults, lag_figures
from benchmarks.streams.histogram import Histogram
from tests.benchmarks.streams.samples import sample_figures


def of(*seconds: float) -> dict[str, object]:
    """A histogram as JSON."""
    histogram = Histogram()
    for each in seconds:
        histogram.add(each)
    return histogram.to_json()


def client(cpu_s: float, **groups: int) -> dict[str, object]:
    """The records of a client process: the given events of each group, with two tokens and ten bytes each."""
    return {
        "cpu_s": cpu_s,
        "groups": {
            name: {
                "events": events,
                "tokens": 2 * events,
                "bytes": 10 * events,
                "ages": of(*[0.001 * events] * events),
                "gaps": of(*[0.1] * events),
            }
            for name, events in groups.items()
        },
    }


def gauges(time: float, process_s: float, source_s: float) -> dict[str, float]:
    """The gauges of a server."""
    return {
        "time": time, "process_s": process_s, "source_s": source_s, "loop_s": process_s / 2, "switches": 10 * time,
        "forced_switches": time,
        "waited_s": time / 10,
    }  # fmt: skip


WINDOW = Window(
    gauges(100, 1.0, 0.5), gauges(104, 3.0, 0.9), [client(0), client(5)], [client(2, a=10, b=20), client(6, a=50)]
)


def test_costs_per_event_exclude_the_token_source():
    figures = WINDOW.figures()
    assert (figures["events"], figures["tokens"], figures["seconds"]) == (80, 160, 4)
    assert figures["us_per_event"] == pytest.approx(1e6 * (2.0 - 0.4) / 80)
    assert figures["loop_us_per_event"] == pytest.approx(1e6 / 80)
    assert figures["source_us_per_token"] == pytest.approx(1e6 * 0.4 / 160)
    assert (figures["events_per_s"], figures["bytes_per_event"]) == (20, 10)
    assert (figures["server_cores"], figures["busiest_client_cores"]) == (0.5, 0.5)
    assert figures["switches_per_s"] == 11
    assert figures["server_waited"] == pytest.approx(0.1)


def test_times_can_be_those_of_some_groups():
    assert WINDOW.figures()["age_p50_ms"] == pytest.approx(50, rel=0.01)
    assert WINDOW.figures(["b"])["age_p50_ms"] == pytest.approx(20, rel=0.01)
    assert WINDOW.count("events", ["a"]) == 60


def test_a_window_without_events_has_figures():
    empty = Window(gauges(100, 1, 0), gauges(101, 1, 0), [client(0)], [client(0)])
    assert empty.figures()["us_per_event"] == 0


def test_lags_are_in_milliseconds():
    found = lag_figures(Histogram.from_json(of(*[0.001] * 98, 0.02, 0.05)))
    assert found == pytest.approx({"lag_p50_ms": 1, "lag_p99_ms": 20, "lag_max_ms": 50}, rel=0.01)


def test_generated_tokens_that_have_not_arrived_are_lost():
    streams = {"1": [10, 0, 0, 0], "2": [7, 2, 1, 0], "3": [5, 0, 0, 4]}
    assert faults({"1": 10, "2": 10, "3": 5, "99": 1000}, streams) == {"lost": 5, "doubled": 1, "wrong": 4}


def missed(figures) -> list[Verdict]:
    """The verdicts on limits that are missed."""
    return [verdict for verdict in figures.verdicts() if verdict.is_missed]


def test_figures_within_all_limits_miss_none():
    assert missed(sample_figures()) == []
    names = {verdict.limit.name for verdict in sample_figures().verdicts()}
    assert names == set(limits("streams"))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"kib_per_active_stream": 75.0}, "both kib_per_active_stream is 75 KiB, at most 60 KiB: MISSED by 15 KiB"),
        ({"lost": 3}, "both: lost is 3 tokens, at most 0 tokens: MISSED by 3 tokens"),
        ({"doubled": 1}, "both: doubled is 1 tokens, at most 0 tokens: MISSED by 1 tokens"),
        ({"wrong": 1}, "both: wrong is 1 tokens, at most 0 tokens: MISSED by 1 tokens"),
    ],
)
def test_a_missed_limit_says_by_how_much(changes, says):
    assert [str(verdict) for verdict in missed(sample_figures(**changes))] == [says]


def test_resumable_streams_are_compared_with_plain_ones_of_the_same_round():
    figures = sample_figures()
    plain, resumable = figures.cell("sse"), figures.cell("resumable")
    for runs, costs in ((plain.runs, (10.0, 20.0, 40.0)), (resumable.runs, (12.0, 23.0, 60.0))):
        runs[:] = [{**runs[0], "us_per_event": cost} for cost in costs]
    assert [str(verdict) for verdict in missed(figures) if verdict.limit.name.startswith("resumable ")] == [
        "resumable times_plain is 1.2 times, at most 1.15 times: MISSED by 0.05 times"
    ]


@pytest.mark.parametrize("small", [{"events": 300}, {"num_streams": 10}])
def test_in_a_run_too_small_to_judge_only_faults_count(small):
    figures = sample_figures(kib_per_active_stream=75.0, lost=1, **({"events": 300} if "events" in small else {}))
    if "num_streams" in small:
        found = figures.cells[0]
        found.cell = next(cell for cell in make_cells(5, 5) if cell.name == found.cell.name)
    verdicts = [str(verdict) for verdict in figures.cells[0].verdicts()]
    assert verdicts[0] == (
        "both kib_per_active_stream is 75 KiB, at most 60 KiB: too small to judge "
        "(fewer than 5,000 events or 32 streams)"
    )
    assert [verdict.limit.name for verdict in missed(figures)] == ["lost"]


def test_a_fault_in_one_run_of_several_counts():
    figures = sample_figures()
    figures.cells[0].runs[1]["lost"] = 1
    assert [verdict.limit.name for verdict in missed(figures)] == ["lost"]


def test_costs_are_judged_by_their_median():
    found = sample_figures().cells[0]
    found.runs = [{"kib_per_active_stream": value} for value in (1.0, 2.0, 90.0)]
    assert [verdict.figure for verdict in found.verdicts()] == [2.0]
    assert math.isnan(found.median("no such figure"))


def test_a_cell_without_runs_has_no_verdicts():
    found = CellFigures(sample_figures().cells[0].cell)
    assert list(found.verdicts()) == []


def test_the_json_has_every_run_and_every_verdict():
    figures = sample_figures(lost=3)
    figures.failures["ws 2"] = "it died"
    found = json.loads(json.dumps(figures.to_json()))
    assert (found["benchmark"], found["started"], found["failures"]) == ("streams", "now", {"ws 2": "it died"})
    assert [cell["name"] for cell in found["cells"]] == [each.cell.name for each in figures.cells]
    assert found["cells"][0]["runs"] == figures.cells[0].runs
    assert found["cells"][0]["streams"] == {"sse": 1000, "ws": 1000}
    assert [each["figure"] for each in found["verdicts"] if not each["is_met"]] == ["lost"]
    about = {"cell": "both", "figure": "kib_per_active_stream", "most": 60, "unit": "KiB"}
    assert found["verdicts"][0] == {**about, "value": 30, "is_met": True}
