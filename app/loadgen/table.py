"""The figures of a run in the terminal, and of several rates side by side."""

from __future__ import annotations

import math
from collections.abc import Sequence

from app.loadgen.figures import KINDS, Figures, rate_text, run_title
from app.observe.terminal import Colour, Terminal

MAX_LATE_MS = 5.0
MAX_CLIENT_SHARE = 0.8
LABEL, NUMBER = 24, 11
SWEEP = ("ttft", "itl", "e2e")


def table(found: Figures, terminal: Terminal) -> list[str]:
    """Return what one run has shown, and what to mind about it."""
    counts = f"{found.completed:,} completed, {found.failed:,} failed, {found.cancelled:,} cancelled"
    held = f", {found.held:,} had to wait for a place" if found.held else ""
    return [
        "",
        terminal.paint(f"{run_title(found)}, {found.seconds:.1f} s", Colour.BOLD),
        f"{'requests':{LABEL}}{counts}; at most {found.peak:,} open{held}",
        f"{'tokens':{LABEL}}{_tokens(found)}",
        f"{'throughput':{LABEL}}{found.requests_per_s:,.2f} requests/s, {found.output_per_s:,.1f} output tok/s, "
        f"{found.total_per_s:,.1f} tok/s in and out",
        f"{'this client':{LABEL}}sent {found.late_p99_ms:.1f} ms late (p99), connected in "
        f"{found.connect_p99_ms:.1f} ms (p99), took {found.client_share:.0%} of a core",
        "",
        terminal.paint(
            f"{'milliseconds':{LABEL}}" + "".join(f"{name:>{NUMBER}}" for name in ("mean", "p50", "p95", "p99")),
            Colour.DIM,
        ),
        *(_row(found, kind) for kind in KINDS),
        *_failures(found, terminal),
        *(terminal.paint(f"Mind: {line}", Colour.YELLOW) for line in warnings(found)),
    ]


def sweep_table(every: Sequence[Figures], terminal: Terminal) -> list[str]:
    """Return one line for each rate."""
    head = f"{'requests/s':>10}{'done':>8}{'failed':>8}" + "".join(
        f"{f'{kind.upper()} p50':>10}{'p99':>10}" for kind in SWEEP
    )
    lines = ["", terminal.paint(f"{head}{'done/s':>9}{'out tok/s':>11}", Colour.BOLD)]
    for found in every:
        line = f"{rate_text(found.rate):>10}{found.completed:>8,}{found.failed:>8,}"
        for kind in SWEEP:
            spread = found.spread(kind)
            line += f"{spread.p50:>10,.1f}{spread.p99:>10,.1f}" if spread else f"{'-':>10}{'-':>10}"
        lines.append(f"{line}{found.requests_per_s:>9,.2f}{found.output_per_s:>11,.1f}")
    return lines


def warnings(found: Figures) -> list[str]:
    """Return why the figures may say more of this client than of the server."""
    lines = []
    if found.late_p99_ms > MAX_LATE_MS and math.isfinite(found.rate):  # all at once takes what it takes
        lines.append(
            f"requests were sent {found.late_p99_ms:.1f} ms late (p99); this client or its machine is too slow for them"
        )
    if found.client_share > MAX_CLIENT_SHARE:
        lines.append(f"this client took {found.client_share:.0%} of a core, so its clocks may lag behind the server")
    if found.completed and not found.has_usage:
        lines.append("the server does not tell its token counts: chunks are counted instead")
    return lines


def _tokens(found: Figures) -> str:
    each = max(found.completed, 1)
    told = "counted by the server" if found.has_usage else "chunks"
    counts = f"{found.prompt_tokens:,} in ({found.prompt_tokens / each:,.0f} each), "
    counts += f"{found.output_tokens:,} out ({found.output_tokens / each:,.0f} each), {told}"
    return counts + (f"; {found.cancelled_tokens:,} of cancelled answers" if found.cancelled else "")


def _row(found: Figures, kind: str) -> str:
    spread = found.spread(kind)
    numbers = "".join(f"{value:>{NUMBER},.2f}" for value in spread) if spread else f"{'-':>{NUMBER}}" * 4
    return f"{KINDS[kind]:{LABEL}}{numbers}"


def _failures(found: Figures, terminal: Terminal) -> list[str]:
    if not found.errors:
        return []
    counts = ", ".join(f"{count:,} {name}" for name, count in found.errors.items())
    return ["", terminal.paint(f"failed: {counts}", Colour.RED), f"the first one: {found.first_error}"]
