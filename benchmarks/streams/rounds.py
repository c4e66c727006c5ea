"""One run of one cell: open streams, let them go, look at both ends, end them, and compare token by token."""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple

from benchmarks.streams.cells import MODEL, Cell, Part
from benchmarks.streams.crowd import PROMPT, SLOW, STALL, VANISH, WEBSOCKET
from benchmarks.streams.figures import Run, Window, faults, lag_figures
from benchmarks.streams.histogram import Histogram
from benchmarks.streams.kernel_memory import queued_kib
from benchmarks.streams.party import MODEL_TOKENS, Party
from benchmarks.streams.pinning import Cores

WARM, WARM_STREAMS, WARM_RATE, WARM_S = "warm", 16, 50.0, 0.5
SETTLE_S = 0.3
WARM_UP_STEPS, LEAST_WARM_UP_S = 2, 1.0
STALLED_SHARE, SLOW_SHARE, VANISHING_SHARE = 0.10, 0.10, 0.05
FAST = 20  # times as fast as others are the streams of those who do not read, so that they stall soon
STALL_S = 5.0
SLOW_WINDOWS = 2


class Setup(NamedTuple):
    """How long a window is, who has which core, and where logs go."""

    seconds: float
    cores: Cores
    folder: Path


def measure(cell: Cell, setup: Setup) -> Run:
    """Run a cell once.

    Raises:
        SideFailed: a process died, an answer was refused, or something took too long.
    """
    # Nobody is cut while the cell runs: how long a stalled client may stay is a setting, not a cost.
    timeout_s = 10 * setup.seconds + 120
    with Party(cell.serve, setup.cores, setup.folder, stall_timeout_s=timeout_s) as party:
        _warm(party, cell)
        if cell.serve == MODEL:
            return _measure_model(party, cell)
        base = party.gauges()
        if cell.has_slow_clients:
            return _measure_slow(party, cell, setup)
        for part in cell.parts:
            party.open(part.kind, part)
        time.sleep(SETTLE_S)
        idle = party.gauges()
        window = _watch(party, cell, setup)
        lags = _lags(party, setup)
        made, streams, _ = party.finish()
        figures = {**window.figures(), **lags, **faults(made, streams), "server_mib": window.after["rss_kib"] / 1024}
        if cell.rate is not None:  # at full speed it is the rubbish of many thousand events that counts
            figures["kib_per_idle_stream"] = (idle["rss_kib"] - base["rss_kib"]) / cell.num_streams
            figures["kib_per_active_stream"] = (window.after["rss_kib"] - base["rss_kib"]) / cell.num_streams
        return figures


def _warm(party: Party, cell: Cell) -> None:
    """Take every path once, so that the cell does not pay for what is made only once."""
    for part in cell.parts:
        num_streams = 1 if cell.serve == MODEL else min(WARM_STREAMS, part.num_streams)
        party.open(WARM + part.kind, Part(part.kind, num_streams, part.per_socket))
    party.pace(WARM_RATE)
    if cell.serve != MODEL:
        time.sleep(WARM_S)
    party.finish()


def _watch(party: Party, cell: Cell, setup: Setup) -> Window:
    """Let tokens come, and return what a window of them came to."""
    party.pace(cell.rate)
    time.sleep(max(LEAST_WARM_UP_S, WARM_UP_STEPS / cell.rate if cell.rate else 0.0))
    return _window(party, setup)


def _window(party: Party, setup: Setup) -> Window:
    before, clients_before = party.gauges(), party.ask_clients("begin")
    time.sleep(setup.seconds)
    after = party.gauges()
    return Window(before, after, clients_before, party.ask_clients("read"))


def _lags(party: Party, setup: Setup) -> Run:
    party.server.ask("watch", is_watching=True)
    time.sleep(setup.seconds / 3)
    return lag_figures(Histogram.from_json(party.server.ask("watch", is_watching=False)["lags"]))


def _measure_model(party: Party, cell: Cell) -> Run:
    """All ask the same and must get the same text; the window is from the first request to the last token."""
    before, clients_before = party.gauges(), party.ask_clients("begin")
    for part in cell.parts:
        party.open(part.kind, part)
    _, streams, answers = party.finish()
    window = Window(before, party.gauges(), clients_before, party.ask_clients("read"))
    texts = {text for answer in answers for text in answer["texts"]}
    wrong = len(texts) - 1 + sum(found[3] for found in streams.values())
    numbered = [part for part in cell.parts if part.kind == WEBSOCKET]
    lost = sum(part.num_streams * MODEL_TOKENS - window.count("tokens", [part.kind]) for part in numbered)
    return {**window.figures(), "lost": lost, "doubled": 0, "wrong": wrong}


def _measure_slow(party: Party, cell: Cell, setup: Setup) -> Run:
    """First the prompt readers alone, then among others; then those who have stalled read on.

    All streams have their tokens with the same steps, so few late ones make the 99th percentile: both windows are long.
    """
    setup = setup._replace(seconds=SLOW_WINDOWS * setup.seconds)
    crowds = sizes(cell)
    for name, part in crowds[PROMPT].items():
        party.open(name, part)
    alone = _watch(party, cell, setup)
    quiet = party.gauges()
    for mode in (STALL, SLOW):
        for name, part in crowds[mode].items():
            party.open(name, part, mode, FAST, wait=False)
    time.sleep(STALL_S)
    stalled, made_before = party.gauges(), party.tokens()
    num_stalled = sum(part.num_streams for mode in (STALL, SLOW) for part in crowds[mode].values())
    kernel = queued_kib(party.port, num_stalled)
    for name, part in crowds[VANISH].items():
        party.open(name, part, VANISH, wait=False)
    among = _window(party, setup)
    made_after = party.tokens()
    lags = _lags(party, setup)
    made, handed = _handed(party, list(crowds[STALL]))
    all_made, streams, answers = party.finish()
    prompt = list(crowds[PROMPT])
    before, after = (window.times("gaps", prompt).percentile(0.99) for window in (alone, among))
    figures = {
        **among.figures(prompt),
        **lags,
        **faults(all_made, streams),
        "gap_p99_alone_ms": 1e3 * before,
        "gap_p99_ratio": after / before,
        "kib_per_stalled_stream": (stalled["rss_kib"] - quiet["rss_kib"]) / num_stalled + (kernel or 0.0),
        "tokens_beyond": max(made[stream] - number for stream, number in handed.items()),
        "tokens_while_stalled": max(made_after[stream] - made_before[stream] for stream in handed),
        "returns": sum(answer["returns"] for answer in answers),
    }
    return figures if kernel is None else {**figures, "kernel_kib_per_stalled_stream": kernel}


def sizes(cell: Cell) -> dict[str, dict[str, Part]]:
    """Return the crowds of each mode by name."""
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


def _handed(party: Party, crowds: list[str]) -> tuple[dict[str, int], dict[str, int]]:
    """Return, by stream, the tokens made, and the last one handed to the socket of each client that reads nothing.

    The server is stopped meanwhile, so what the clients then find is what the kernel has.
    """
    made = party.tokens()
    party.server.stop()
    try:
        answers = [answer for crowd in crowds for answer in party.ask_clients("drain", crowd=crowd)]
    finally:
        party.server.go_on()
    return made, {stream: number for answer in answers for stream, number in answer["tokens"].items()}
