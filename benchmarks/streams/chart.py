"""The chart of the benchmark `streams`, drawn from its JSON."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from typing import Any

from app.loadgen.plots import OURS, Key, Picture
from benchmarks.bars import PEERS, Bar, Bars
from benchmarks.streams.cells import BARE

COSTS = {False: "CPU microseconds per token event, paced", True: "CPU microseconds per token event, as fast as it can"}
AGES = "Milliseconds from the generation of a token to its reader: median, and 99th percentile behind it"
MEMORY = "KiB of the server per stream: waiting, and active behind it"


def chart(found: Mapping[str, Any]) -> Picture:
    """Draw the CPU time per event beside the bare protocol and the limit, the added latency, and the memory."""
    cells = [cell for cell in found["cells"] if cell["runs"]]
    costs = [Bars(title, list(_costs(found, is_full))) for is_full, title in COSTS.items()]
    panels = [*costs, Bars(AGES, list(_pairs(cells, "age_p50_ms", "age_p99_ms", {})))]
    ours = [cell for cell in cells if cell["serve"] != BARE]
    memory = _pairs(ours, "kib_per_idle_stream", "kib_per_active_stream", _limits(found, "kib_per_active_stream"))
    return Picture(
        f"What a stream costs the server: {found['machine']['cpu']}, one core",
        "",
        [
            Key("Quire"),
            Key("limit", shape="limit"),
            Key("the bare protocol in the same run", shape="floor"),
        ],
        [[[panel for panel in [*panels, Bars(MEMORY, list(memory))] if panel.rows]]],
    )


def _costs(found: Mapping[str, Any], is_full: bool) -> Iterator[Bar]:
    limits = _limits(found, "us_per_event")
    bare = [
        _values(cell, "us_per_event")
        for cell in found["cells"]
        if cell["name"] == ("bare-saturated" if is_full else "bare")
    ]
    floor = statistics.median(bare[0]) if bare and bare[0] else None
    for cell in found["cells"]:
        values, is_bare = _values(cell, "us_per_event"), cell["serve"] == BARE
        if values and (cell["rate"] is None or cell["name"].endswith("saturated")) == is_full:
            words = f"{statistics.median(values):.1f}"
            words += f" ({min(values):.1f}-{max(values):.1f})" if len(values) > 1 else ""
            marks = {} if is_bare else {"limit": limits.get(cell["name"]), "floor": floor}
            yield Bar(_label(cell), statistics.median(values), words, PEERS[0] if is_bare else OURS, marks=marks)


def _pairs(cells: list[Any], strong: str, light: str, limits: Mapping[str, float]) -> Iterator[Bar]:
    """Yield a bar of one figure before another one, of the cells that have both."""
    for cell in cells:
        front, behind = _values(cell, strong), _values(cell, light)
        if front and any(behind):
            low, high = max(statistics.median(front), 0.0), statistics.median(behind)
            colour, marks = PEERS[0] if cell["serve"] == BARE else OURS, {"limit": limits.get(cell["name"])}
            yield Bar(_label(cell), low, f"{low:.1f}, {high:.1f}", colour, behind=high, marks=marks)


def _limits(found: Mapping[str, Any], figure: str) -> dict[str, float]:
    return {each["cell"]: each["most"] for each in found["verdicts"] if each["figure"] == figure}


def _values(cell: Mapping[str, Any], figure: str) -> list[float]:
    return [run[figure] for run in cell["runs"] if figure in run]


def _label(cell: Mapping[str, Any]) -> str:
    return f"{cell['title']}, {sum(cell['streams'].values()):,}"
