"""The figures of rounds: in a table, as JSON, and held against the limits."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from app.loadgen.table import number, table
from app.observe.terminal import Terminal
from benchmarks.figures import spread
from benchmarks.gpu_host.rounds import Round
from benchmarks.limits import Verdict, limits

ENOUGH_CORES = 3  # loop and engine share one, work without the interpreter's lock has another, the clients a third
SHARE, HOST = "served / offline", "loop and engine, of the steps' time"
EXCUSE = "not judged, the clients have no core of their own"

FIGURES: Mapping[str, Callable[[Round], float]] = {
    "offline tok/s": lambda each: each.num_tokens / each.offline.seconds,
    "served tok/s": lambda each: each.num_tokens / each.served.seconds,
    "served, % of offline": lambda each: each.share,
    "loop and engine, % of the steps' time": lambda each: each.host_share,
    "device, ms/step": lambda each: 1e3 * each.offline.device_s / each.offline.num_steps,
    "engine thread, CPU ms/step": lambda each: 1e3 * each.served.threads.engine / each.served.num_steps,
    "event loop, CPU ms/step": lambda each: 1e3 * each.served.threads.loop / each.served.num_steps,
    "clients, CPU ms/step": lambda each: 1e3 * each.served.clients_s / each.served.num_steps,
    "engine thread, CPU us/token": lambda each: 1e6 * each.served.threads.engine / each.num_tokens,
    "event loop, CPU us/token": lambda each: 1e6 * each.served.threads.loop / each.num_tokens,
    "clients, CPU us/token": lambda each: 1e6 * each.served.clients_s / each.num_tokens,
    "loop and engine without a core, % of the time": lambda each: (
        100 * each.served.threads.waited / each.served.seconds
    ),
    "served steps, % of offline": lambda each: 100 * each.served.num_steps / each.offline.num_steps,
    "to the first token p50, ms": lambda each: each.served.ttft_p50_ms,
    "tokens/event": lambda each: each.num_tokens / each.served.parts,
    "between tokens p50, ms": lambda each: each.served.itl_p50_ms,
    "between tokens p99, ms": lambda each: each.served.itl_p99_ms,
}


def progress_line(found: Round) -> str:
    """Return some figures of one round."""
    some = ("offline tok/s", "served tok/s", "served, % of offline", "loop and engine, % of the steps' time")
    return "; ".join(f"{name} {number(FIGURES[name](found))}" for name in some)


def report(found: Mapping[str, Sequence[Round]], terminal: Terminal) -> list[str]:
    """Return the table of all cells, a column each: the median, with the lowest and the highest round."""
    head = ["median (lowest-highest)", *found]
    rows = [
        [name, *(spread([value(each) for each in rounds]) for rounds in found.values())]
        for name, value in FIGURES.items()
    ]
    return table(terminal, head, rows)


def judged(name: str, rounds: Sequence[Round], cores: int) -> list[Verdict]:
    """Hold a cell's medians against its limits.

    With too few cores the clients take time from the server: a share is then excused if the time that loop and engine
    need for a step is within its limit.
    """
    figures = {SHARE: [each.share for each in rounds], HOST: [each.host_share for each in rounds]}
    known = limits("gpu_host")
    found = {
        what: Verdict(known[f"{name}: {what}"], statistics.median(values))
        for what, values in figures.items()
        if f"{name}: {what}" in known
    }
    host = found.get(HOST)
    if SHARE in found and not found[SHARE].is_met and host is not None and host.is_met and cores < ENOUGH_CORES:
        found[SHARE] = replace(found[SHARE], excuse=EXCUSE)
    return list(found.values())


def to_json(found: Mapping[str, Sequence[Round]]) -> dict[str, Any]:
    """Return all rounds as they are written."""
    return {name: [_written(each) for each in rounds] for name, rounds in found.items()}


def _written(found: Round) -> dict[str, Any]:
    served = found.served._asdict() | {"threads": found.served.threads._asdict()}
    figures = {name: value(found) for name, value in FIGURES.items()}
    return {"tokens": found.num_tokens, "offline": found.offline._asdict(), "served": served, "figures": figures}
