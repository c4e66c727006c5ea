"""One run of one cell: open streams, generate tokens, read the gauges at both ends, and compare all tokens."""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple

from benchmarks.streams.cells import MODEL, Cell, Part
from benchmarks.streams.client_group import PROMPT, SLOW, STALL, VANISH, WEBSOCKET
from benchmarks.streams.figures import Run, Window, faults, lag_figures
from benchmarks.streams.histogram import Histogram
from benchmarks.streams.kernel_memory import queued_kib
from benchmarks.streams.pinning import Cores
from benchmarks.streams.processes import MODEL_TOKENS, Processes

WARM, WARM_STREAMS, WARM_RATE, WARM_S = "warm", 16, 50.0, 0.5
SETTLE_S = 0.3
WARM_UP_STEPS, LEAST_WARM_UP_S = 2, 1.0
STALLED_SHARE, SLOW_SHARE, VANISHING_SHARE = 0.10, 0.10, 0.05
FAST = 20  # times the rate of others have the streams of slow clients, so that they stall soon
STALL_S = 5.0
SLOW_WINDOWS = 2


class Setup(NamedTuple):
    """The length of a window, the cores, and the folder of logs."""

    seconds: float
    cores: Cores
    folder: Path


def measure(cell: Cell, setup: Setup) -> Run:
    """Run a cell once.

    Raises:
        SideFailed: a process died, a stream was rejected, or a request timed out.
    """
    # No client stalls out while the cell runs: the stall timeout is a setting, not a cost.
    timeout_s = 10 * setup.seconds + 120
    with Processes(cell.serve, setup.cores, setup.folder, stall_timeout_s=timeout_s) as processes:
        _warm(processes, cell)
        if cell.serve == MODEL:
            return _measure_model(processes, cell)
        base = processes.gauges()
        if cell.has_slow_clients:
            return _measure_slow(processes, cell, setup)
        for part in cell.parts:
            processes.open(part.kind, part)
        time.sleep(SETTLE_S)
        idle = processes.gauges()
        window = _watch(processes, cell, setup)
        lags = _lags(processes, setup)
        made, streams, _ = processes.finish()
        figures = {**window.figures(), **lags, **faults(made, streams), "server_mib": window.after["rss_kib"] / 1024}
        if cell.rate is not None:  # at full speed garbage of thousands of events dominates
            figures["kib_per_idle_stream"] = (idle["rss_kib"] - base["rss_kib"]) / cell.num_streams
            figures["kib_per_active_stream"] = (window.after["rss_kib"] - base["rss_kib"]) / cell.num_streams
        return figures


def _warm(processes: Processes, cell: Cell) -> None:
    """Run every path once, so that one-time costs are not measured."""
    for part in cell.parts:
        num_streams = 1 if cell.serve == MODEL else min(WARM_STREAMS, part.num_streams)
        processes.open(WARM + part.kind, Part(part.kind, num_streams, part.per_socket))
    processes.pace(WARM_RATE)
    if cell.serve != MODEL:
        time.sleep(WARM_S)
    processes.finish()


def _watch(processes: Processes, cell: Cell, setup: Setup) -> Window:
    """Generate tokens, and measure a window."""
    processes.pace(cell.rate)
    time.sleep(max(LEAST_WARM_UP_S, WARM_UP_STEPS / cell.rate if cell.rate else 0.0))
    return _window(processes, setup)


def _window(processes: Processes, setup: Setup) -> Window:
    before, clients_before = processes.gauges(), processes.ask_clients("begin")
    time.sleep(setup.seconds)
    after = processes.gauges()
    return Window(before, after, clients_before, processes.ask_clients("read"))


def _lags(processes: Processes, setup: Setup) -> Run:
    processes.server.ask("watch", is_watching=True)
    time.sleep(setup.seconds / 3)
    return lag_figures(Histogram.from_json(processes.server.ask("watch", is_watching=False)["lags"]))


def _measure_model(processes: Processes, cell: Cell) -> Run:
    """All streams have the same request and must have the same text; the window covers all of them."""
    before, clients_before = processes.gauges(), processes.ask_clients("begin")
    for part in cell.parts:
        processes.open(part.kind, part)
    _, streams, answers = processes.finish()
    window = Window(before, processes.gauges(), clients_before, processes.ask_clients("read"))
    texts = {text for answer in answers for text in answer["texts"]}
    wrong = len(texts) - 1 + sum(found[3] for found in streams.values())
    numbered = [part for part in cell.parts if part.kind == WEBSOCKET]
    lost = sum(part.num_streams * MODEL_TOKENS - window.count("tokens", [part.kind]) for part in numbered)
    return {**window.figures(), "lost": lost, "doubled": 0, "wrong": wrong}


def _measure_slow(processes: Processes, cell: Cell, setup: Setup) -> Run:
    """Measure the prompt readers alone, then beside slow clients; then let stalled clients read on.

    Both windows are long, since all streams get tokens in the same steps: few late steps make the 99th percentile.
    """
    setup = setup._replace(seconds=SLOW_WINDOWS * setup.seconds)
    groups = sizes(cell)
    for name, part in groups[PROMPT].items():
        processes.open(name, part)
    alone = _watch(processes, cell, setup)
    quiet = processes.gauges()
    for mode in (STALL, SLOW):
        for name, part in groups[mode].items():
            processes.open(name, part, mode, FAST, wait=False)
    time.sleep(STALL_S)
    stalled, made_before = processes.gauges(), processes.tokens()
    num_stalled = sum(part.num_streams for mode in (STALL, SLOW) for part in groups[mode].values())
    kernel = queued_kib(processes.port, num_stalled)
    for name, part in groups[VANISH].items():
        processes.open(name, part, VANISH, wait=False)
    among = _window(processes, setup)
    made_after = processes.tokens()
    lags = _lags(processes, setup)
    made, written = _last_written(processes, list(groups[STALL]))
    all_made, streams, answers = processes.finish()
    prompt = list(groups[PROMPT])
    before, after = (window.times("gaps", prompt).percentile(0.99) for window in (alone, among))
    figures = {
        **among.figures(prompt),
        **lags,
        **faults(all_made, streams),
        "gap_p99_alone_ms": 1e3 * before,
        "gap_p99_ratio": after / before,
        "kib_per_stalled_stream": (stalled["rss_kib"] - quiet["rss_kib"]) / num_stalled + (kernel or 0.0),
        "tokens_beyond": max(made[stream] - number for stream, number in written.items()),
        "tokens_while_stalled": max(made_after[stream] - made_before[stream] for stream in written),
        "returns": sum(answer["returns"] for answer in answers),
    }
    return figures if kernel is None else {**figures, "kernel_kib_per_stalled_stream": kernel}


def sizes(cell: Cell) -> dict[str, dict[str, Part]]:
    """Return the groups of each mode, by name."""
    shares = {STALL: STALLED_SHARE, SLOW: SLOW_SHARE, VANISH: VANISHING_SHARE}
    found: dict[str, dict[str, Part]] = {mode: {} for mode in (PROMPT, *shares)}
    for part in cell.parts:
        rest = part.num_streams
        for mode, share in shares.items():
            size = max(1, round(share * part.num_streams))
            found[mode][f"{part.kind}-{mode}"] = part._replace(num_streams=size)
            rest -= size
        found[PROMPT][f"{part.kind}-{PROMPT}"] = part._replace(num_streams=max(1, rest))
    return found


def _last_written(processes: Processes, groups: list[str]) -> tuple[dict[str, int], dict[str, int]]:
    """Return, by stream, the generated tokens, and the last one in the socket of each client that reads nothing.

    The server is stopped for this, so that the clients then read only what the kernel holds.
    """
    made = processes.tokens()
    processes.server.stop()
    try:
        answers = [answer for group in groups for answer in processes.ask_clients("drain", group=group)]
    finally:
        processes.server.resume()
    return made, {stream: number for answer in answers for stream, number in answer["tokens"].items()}
