"""The figures of a run as lines for the terminal, and a table of several rates."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from app.loadgen.figures import KINDS, Figures, rate_text, run_title
from app.loadgen.table import number, table
from app.observe.terminal import Colour, Terminal

MAX_LATE_MS = 5.0
MAX_CLIENT_SHARE = 0.8
MAX_CACHED_SHARE = 0.5
LABEL = 24
SWEEP = ("ttft", "itl", "e2e")


def report(found: Figures, terminal: Terminal) -> list[str]:
    """Return the lines of one run, and its warnings."""
    counts = f"{found.completed:,} completed, {found.failed:,} failed, {found.cancelled:,} cancelled"
    held = f", {found.held:,} waited for --max-concurrency" if found.held else ""
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
        *table(terminal, ["milliseconds", "mean", "p50", "p95", "p99"], [_row(found, kind) for kind in KINDS]),
        *_failures(found, terminal),
        *(terminal.paint(f"Warning: {line}", Colour.YELLOW) for line in warnings(found)),
    ]


def sweep_report(runs: Sequence[Figures], terminal: Terminal) -> list[str]:
    """Return a table with one line per run."""
    times = [text for kind in SWEEP for text in (f"{kind.upper()} p50", "p99")]
    return [
        "",
        *table(terminal, ["requests/s", "done", "failed", *times, "done/s", "out tok/s"], map(_sweep_row, runs)),
    ]


def warnings(found: Figures) -> list[str]:
    """Return the reasons why the figures may reflect this client more than the server."""
    lines = []
    if found.late_p99_ms > MAX_LATE_MS and math.isfinite(
        found.rate
    ):  # requests that are all due at once cannot be on time
        lines.append(
            f"requests were sent {found.late_p99_ms:.1f} ms late (p99); this client or its machine is too slow"
        )
    if found.client_share > MAX_CLIENT_SHARE:
        lines.append(
            f"this client took {found.client_share:.0%} of a core, so the measured times may include its own delays"
        )
    if found.cached_tokens > MAX_CACHED_SHARE * found.prompt_tokens:
        lines.append(
            "the server had most of the prompts in its prefix cache, as it has those of a run before; another --seed "
            "makes other prompts"
        )
    if found.completed and not found.has_usage:
        lines.append("the server does not report token counts: chunks are counted instead")
    return lines


def prompt_length(found: Figures) -> str:
    """Return how many tokens a prompt had by the server's count; empty if it does not count."""
    return f"{found.prompt_tokens / found.completed:,.0f} tokens each" if found.has_usage else ""


def _tokens(found: Figures) -> str:
    each = max(found.completed, 1)
    source = "counted by the server" if found.has_usage else "chunks"
    share = found.cached_tokens / max(found.prompt_tokens, 1)
    cached = f", {share:.0%} of them cached" if found.cached_tokens else ""
    counts = f"{found.prompt_tokens:,} in ({found.prompt_tokens / each:,.0f} each{cached}), " if found.has_usage else ""
    counts += f"{found.output_tokens:,} out ({found.output_tokens / each:,.0f} each), {source}"
    return counts + (f"; {found.cancelled_tokens:,} of cancelled answers" if found.cancelled else "")


def _row(found: Figures, kind: str) -> list[str]:
    return [KINDS[kind], *_numbers(found.spread(kind) or (None,) * 4)]


def _sweep_row(found: Figures) -> list[str]:
    spreads = [found.spread(kind) for kind in SWEEP]
    times = [value for spread in spreads for value in ((spread.p50, spread.p99) if spread else (None, None))]
    counts = [f"{found.completed:,}", f"{found.failed:,}"]
    return [rate_text(found.rate), *counts, *_numbers([*times, found.requests_per_s, found.output_per_s])]


def _numbers(values: Iterable[float | None]) -> list[str]:
    return ["-" if value is None else number(value) for value in values]


def _failures(found: Figures, terminal: Terminal) -> list[str]:
    if not found.errors:
        return []
    counts = ", ".join(f"{count:,} {name}" for name, count in found.errors.items())
    return ["", terminal.paint(f"failed: {counts}", Colour.RED), f"first message: {found.first_error}"]
