"""Sample figures of the benchmark `streams`, for the tests of report, chart and verdicts."""

from benchmarks.streams.cells import make_cells
from benchmarks.streams.figures import CellFigures, Figures

RUN = {
    "seconds": 10.0,
    "events": 25000,
    "tokens": 25000,
    "events_per_s": 2500.0,
    "bytes_per_event": 230.0,
    "us_per_event": 20.0,
    "server_cores": 0.05,
    "server_waited": 0.002,
    "busiest_client_cores": 0.03,
    "age_p50_ms": 5.0,
    "age_p99_ms": 9.0,
    "lag_p99_ms": 8.0,
    "kib_per_idle_stream": 25.0,
    "kib_per_active_stream": 30.0,
    "lost": 0,
    "doubled": 0,
    "wrong": 0,
}
SLOW = {
    "gap_p99_alone_ms": 51.0,
    "gap_p99_ms": 52.0,
    "gap_p99_ratio": 1.02,
    "kib_per_stalled_stream": 40.0,
    "kernel_kib_per_stalled_stream": 30.0,
    "tokens_beyond": 200,
    "tokens_while_stalled": 0,
    "returns": 12,
}
COSTS = {
    "bare": 7.0,
    "bare-saturated": 3.2,
    "sse-saturated": 11.0,
    "resumable-saturated": 12.0,
    "responses-saturated": 15.0,
    "messages-saturated": 13.0,
    "ws-saturated": 14.0,
    "ws-resumable-saturated": 15.0,
}


def sample_figures(**changes: float) -> Figures:
    """Two runs of every cell that meet all limits; `changes` are figures of the cell `both`."""
    cells = []
    for cell in make_cells(1000, 5):
        run = {**RUN, "us_per_event": COSTS.get(cell.name, 20.0), **(SLOW if cell.has_slow_clients else {})}
        if cell.rate is None:
            del run["kib_per_idle_stream"], run["kib_per_active_stream"]
        if cell.name == "both":
            run |= changes
        cells.append(CellFigures(cell, [dict(run), {**run, "us_per_event": run["us_per_event"] + 1}]))
    return Figures({"started": "now", "machine": {"cpu": "<A & B>"}}, cells)
