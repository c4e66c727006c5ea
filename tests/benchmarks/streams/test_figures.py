"""What follows from counts: costs per event, what was lost, which promises are kept; and the JSON."""

import json
import math

import pytest

from benchmarks.limits import Verdict, limits
from benchmarks.streams.cells import make_cells
from benchmarks.streams.figures import CellFigures, Window, faults, lag_figures
from benchmarks.streams.histogram import Histogram
from tests.benchmarks.streams.made import made_figures


def of(*seconds: float) -> dict[str, object]:
    """A histogram as it crosses processes."""
    histogram = Histogram()
    for each in seconds:
        histogram.add(each)
    return histogram.to_json()


def client(cpu_s: float, **crowds: int) -> dict[str, object]:
    """What a client process tells: as many events in each crowd as given, of two tokens and ten bytes each."""
    return {
        "cpu_s": cpu_s,
        "crowds": {
            name: {
                "events": events,
                "tokens": 2 * events,
                "bytes": 10 * events,
                "ages": of(*[0.001 * events] * events),
                "gaps": of(*[0.1] * events),
            }
            for name, events in crowds.items()
        },
    }


def gauges(time: float, process_s: float, source_s: float) -> dict[str, float]:
    """What a server tells."""
    return {
        "time": time, "process_s": process_s, "source_s": source_s, "loop_s": process_s / 2, "switches": 10 * time,
        "forced_switches": time,
        "waited_s": time / 10,
    }  # fmt: skip


WINDOW = Window(
    gauges(100, 1.0, 0.5), gauges(104, 3.0, 0.9), [client(0), client(5)], [client(2, a=10, b=20), client(6, a=50)]
)


def test_costs_are_the_servers_without_the_sources_by_event():
    figures = WINDOW.figures()
    assert (figures["events"], figures["tokens"], figures["seconds"]) == (80, 160, 4)
    assert figures["us_per_event"] == pytest.approx(1e6 * (2.0 - 0.4) / 80)
    assert figures["loop_us_per_event"] == pytest.approx(1e6 / 80)
    assert figures["source_us_per_token"] == pytest.approx(1e6 * 0.4 / 160)
    assert (figures["events_per_s"], figures["bytes_per_event"]) == (20, 10)
    assert (figures["server_cores"], figures["busiest_client_cores"]) == (0.5, 0.5)
    assert figures["switches_per_s"] == 11
    assert figures["server_waited"] == pytest.approx(0.1)


def test_times_may_be_those_of_some_crowds():
    assert WINDOW.figures()["age_p50_ms"] == pytest.approx(50, rel=0.01)
    assert WINDOW.figures(["b"])["age_p50_ms"] == pytest.approx(20, rel=0.01)
    assert WINDOW.count("events", ["a"]) == 60


def test_a_window_without_events_has_figures():
    empty = Window(gauges(100, 1, 0), gauges(101, 1, 0), [client(0)], [client(0)])
    assert empty.figures()["us_per_event"] == 0


def test_lags_are_in_milliseconds():
    found = lag_figures(Histogram.from_json(of(*[0.001] * 98, 0.02, 0.05)))
    assert found == pytest.approx({"lag_p50_ms": 1, "lag_p99_ms": 20, "lag_max_ms": 50}, rel=0.01)


def test_tokens_that_were_made_and_have_not_come_are_lost():
    streams = {"1": [10, 0, 0, 0], "2": [7, 2, 1, 0], "3": [5, 0, 0, 4]}
    assert faults({"1": 10, "2": 10, "3": 5, "99": 1000}, streams) == {"lost": 5, "doubled": 1, "wrong": 4}


def missed(figures) -> list[Verdict]:
    """The promises that are broken for sure."""
    return [verdict for verdict in figures.verdicts() if verdict.is_missed]


def test_figures_that_keep_all_promises_miss_none():
    assert missed(made_figures()) == []
    told = {verdict.limit.name for verdict in made_figures().verdicts()}
    assert told == set(limits("streams"))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"kib_per_active_stream": 75.0}, "both kib_per_active_stream is 75 KiB, at most 60 KiB: MISSED by 15 KiB"),
        ({"lost": 3}, "both: lost is 3 tokens, at most 0 tokens: MISSED by 3 tokens"),
        ({"doubled": 1}, "both: doubled is 1 tokens, at most 0 tokens: MISSED by 1 tokens"),
        ({"wrong": 1}, "both: wrong is 1 tokens, at most 0 tokens: MISSED by 1 tokens"),
    ],
)
def test_a_missed_promise_says_by_how_much(changes, says):
    assert [str(verdict) for verdict in missed(made_figures(**changes))] == [says]


@pytest.mark.parametrize("small", [{"events": 300}, {"num_streams": 10}])
def test_a_run_too_small_to_judge_misses_nothing_but_tokens(small):
    figures = made_figures(kib_per_active_stream=75.0, lost=1, **({"events": 300} if "events" in small else {}))
    if "num_streams" in small:
        found = figures.cells[0]
        found.cell = next(cell for cell in make_cells(5, 5) if cell.name == found.cell.name)
    told = [str(verdict) for verdict in figures.cells[0].verdicts()]
    assert told[0] == (
        "both kib_per_active_stream is 75 KiB, at most 60 KiB: too small to judge "
        "(fewer than 5,000 events or 32 streams)"
    )
    assert [verdict.limit.name for verdict in missed(figures)] == ["lost"]


def test_a_fault_in_one_run_of_several_counts():
    figures = made_figures()
    figures.cells[0].runs[1]["lost"] = 1
    assert [verdict.limit.name for verdict in missed(figures)] == ["lost"]


def test_costs_are_judged_by_the_median():
    found = made_figures().cells[0]
    found.runs = [{"kib_per_active_stream": value} for value in (1.0, 2.0, 90.0)]
    assert [verdict.figure for verdict in found.verdicts()] == [2.0]
    assert math.isnan(found.median("no such figure"))


def test_a_cell_that_was_not_measured_promises_nothing():
    found = CellFigures(made_figures().cells[0].cell)
    assert list(found.verdicts()) == []


def test_the_json_has_every_run_and_every_promise():
    figures = made_figures(lost=3)
    figures.failures["ws 2"] = "it died"
    found = json.loads(json.dumps(figures.to_json()))
    assert (found["benchmark"], found["started"], found["failures"]) == ("streams", "now", {"ws 2": "it died"})
    assert [cell["name"] for cell in found["cells"]] == [each.cell.name for each in figures.cells]
    assert found["cells"][0]["runs"] == figures.cells[0].runs
    assert found["cells"][0]["streams"] == {"sse": 1000, "ws": 1000}
    assert [each["figure"] for each in found["promises"] if not each["is_met"]] == ["lost"]
    about = {"cell": "both", "figure": "kib_per_active_stream", "most": 60, "unit": "KiB"}
    assert found["promises"][0] == {**about, "value": 30, "is_met": True}
