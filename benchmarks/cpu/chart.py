"""The chart of the benchmark `cpu`, drawn from its JSON."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any

from app.loadgen import plots
from app.loadgen.plots import Key, Picture
from app.loadgen.table import number
from benchmarks.bars import PEERS, Bar, Bars
from benchmarks.cpu.cells import KINDS, OURS, Kind

COLOURS = {OURS: plots.OURS, "llama.cpp": PEERS[0], "vLLM": PEERS[1]}
TITLES = {"decode": "Decode, new tokens/s", "prefill": "Prefill, prompt tokens/s"}
MODELS = {"tiny": "tiny, 9 M weights", "s135": "s135, 135 M weights", "q05": "q05, 494 M weights"}
MIXED = "32 requests of mixed lengths at once, s135 bf16: new tokens per second"


def chart(found: Mapping[str, Any]) -> Picture:
    """Draw decode at the left and prefill at the right, of each model and format, and the mixed load below.

    A row ends at the machine's limit, so that a bar's length is the share of the machine that the side uses. Shown are
    the cells in which something is required, or all if that is none.
    """
    measured = [cell for cell in found["cells"] if OURS in cell["tokens_per_second"]]
    cells = [cell for cell in measured if (cell["verdicts"]["decode"] or {}).get("required")] or measured
    columns = []
    for kind in KINDS:
        groups = groupby(cells, key=lambda cell: f"{TITLES[kind]}: {MODELS[cell['shape']]}, {cell['format']}")
        columns.append([Bars(name, [bar for cell in group for bar in _bars(cell, kind)]) for name, group in groups])
    mixed = [Bars(MIXED, list(_mixed_bars(found["mixed_load"])))] if found["mixed_load"]["tokens_per_second"] else []
    sides = dict.fromkeys(side for cell in cells for side in cell["tokens_per_second"])
    machine = found["machine"]
    return Picture(
        f"Tokens per second on {machine['cores']} cores: {machine['cpu']}",
        "1.5×: Quire is as many times as fast as the faster peer, or as this one",
        [*(Key(side, COLOURS[side]) for side in sides), Key("the machine's limit, measured meanwhile", shape="limit")],
        [columns, [mixed]],
    )


def _bars(cell: Mapping[str, Any], kind: Kind) -> Iterator[Bar]:
    """Yield the bars of one batch size."""
    medians = {side: statistics.median(rates[kind]) for side, rates in cell["tokens_per_second"].items()}
    limit, verdict = cell["limit"][kind], cell["verdicts"][kind]
    label, note = f"batch {cell['batch']}", f"{verdict['ratio']:.1f}×" if verdict else ""
    for side, rate in medians.items():
        full_scale = max(limit, *medians.values())
        yield Bar(label, rate, number(rate), COLOURS[side], full_scale, marks={"limit": limit}, note=note)
        label = note = ""


def _mixed_bars(found: Mapping[str, Any]) -> Iterator[Bar]:
    for side, rates in found["tokens_per_second"].items():
        rate, verdict = statistics.median(rates), found["verdicts"].get(side)
        note = f"{verdict['ratio']:.1f}×" if verdict else ""
        yield Bar(side, rate, number(rate), COLOURS.get(side, PEERS[2]), note=note)
