"""The chart of the benchmark `memory`, drawn from the figures of its JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from app.loadgen.plots import OURS, Key, Picture
from benchmarks.bars import PEERS, Bar, Bars

TITLE = "KV memory wasted, and blocks saved by sharing, beside the PagedAttention paper"
COLUMNS = (
    {
        "waste of the whole memory": "KV memory wasted (ShareGPT)",
        "parallel sampling": "Blocks saved: n answers to a prompt",
    },
    {"beam search": "Blocks saved: beam search", "shared prefix": "Blocks saved: requests with a common prefix"},
)


def chart(figures: Iterable[Mapping[str, Any]]) -> Picture:
    """Draw each section's shares of 1, with the paper's marked."""
    found = list(figures)
    columns = [[Bars(title, list(_bars(section, found))) for section, title in column.items()] for column in COLUMNS]
    keys = [
        Key("Quire, blocks of 16 tokens"),
        Key("reserved in one piece, same load", PEERS[0]),
        Key("measured in the PagedAttention paper", shape="limit"),
    ]
    return Picture(TITLE, "", keys, [[[panel for panel in column if panel.rows] for column in columns]])


def _bars(section: str, figures: Iterable[Mapping[str, Any]]) -> Iterator[Bar]:
    for found in figures:
        if found["section"] == section:
            is_ours = not section.startswith("waste") or found["name"] == "blocks"
            load = "" if section.startswith(("waste", "shared")) else f"{found['load'].removesuffix('-like')}, "
            marks, colour = {"limit": found["paper"]}, OURS if is_ours else PEERS[0]
            yield Bar(f"{load}{found['name']}", found["value"], f"{found['value']:.1%}", colour, 1.0, marks=marks)
