"""How `quire top` shows figures: a screen that is drawn anew on a terminal, else one line for each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from app.commands.watching.sparkline import Sparkline
from app.contract.engine_figures import BlockFigures, EngineFigures, Percentiles
from app.runtime.visible_text import visible

HISTORY = 60  # values of a sparkline
BAR_WIDTH = 60
_STYLES = {"used": "blue", "fenced": "yellow", "cached": "cyan", "free": "dim"}
_SIGNS = {"used": "█", "fenced": "▓", "cached": "▒", "free": "░"}
_ASCII_SIGNS = {"used": "#", "fenced": "!", "cached": "+", "free": "."}


class FiguresScreen(Protocol):
    """Shows figures."""

    def show(self, figures: EngineFigures) -> None:
        """Show the newest figures."""


class LinesScreen:
    """Implements `FiguresScreen`: writes one line for each."""

    def __init__(self, write: Callable[[str], object]) -> None:
        self._write = write

    def show(self, figures: EngineFigures) -> None:
        self._write(line_of(figures))


class FullScreen:
    """Implements `FiguresScreen` on a terminal; use it in a `with` block, which leaves the terminal as it was."""

    def __init__(self, title: str, console: Console) -> None:
        self._title = title
        self._is_unicode = console.encoding.startswith("utf")
        self._live = Live(console=console, screen=True, auto_refresh=False)
        self._lines = {
            name: Sparkline(HISTORY, is_unicode=self._is_unicode) for name in ("tokens", "step", "running", "waiting")
        }

    def __enter__(self) -> FullScreen:
        """Take the terminal."""
        self._live.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        """Give it back."""
        self._live.__exit__(None, None, None)

    def show(self, figures: EngineFigures) -> None:
        self._live.update(self.drawn(figures), refresh=True)

    def drawn(self, figures: EngineFigures) -> RenderableType:
        """Return the screen, and remember the figures for the next ones."""
        newest = {
            "tokens": figures.tokens_per_s,
            "step": figures.step_ms or 0.0,
            "running": figures.running,
            "waiting": figures.waiting,
        }
        for name, value in newest.items():
            self._lines[name].add(value)
        rows = Table.grid(padding=(0, 2))
        rows.add_column(style="bold")
        rows.add_column(justify="right", min_width=12)
        rows.add_column()
        for row in self._rows(figures):
            rows.add_row(*row)
        head = Text.assemble(("Quire ", "bold"), visible(figures.model), f"  {figures.state}  ", (self._title, "dim"))
        counts, keys = Text(_blocks_line(figures.blocks)), Text("q quits", "dim")
        return Group(head, "", rows, "", self._bar(figures.blocks), counts, "", keys)

    def _rows(self, figures: EngineFigures) -> Iterator[tuple[str, str, str]]:
        """Yield what a figure is called, its value, and what it was lately or what it means."""
        first, between = figures.first_token_ms, figures.between_tokens_ms
        yield "tokens/s", f"{figures.tokens_per_s:,.1f}", str(self._lines["tokens"])
        yield "step", _ms(figures.step_ms), str(self._lines["step"])
        yield "running", f"{figures.running:,}", str(self._lines["running"])
        yield "waiting", f"{figures.waiting:,}", str(self._lines["waiting"])
        yield "paused", f"{figures.paused:,}", "for clients that read slowly"
        yield "first token", _median(first), _tail(first)
        yield "between tokens", _median(between), _tail(between)
        yield "cache hits", _share(figures.hit_rate), "of prompt tokens, last minute"
        yield (
            "over target",
            f"{figures.steps_over_target:,}",
            f"steps, last minute; target {_ms(figures.step_target_ms)}",
        )
        yield "preemptions", f"{figures.preemptions:,}", f"{figures.swaps:,} swapped, {figures.faults:,} faults"
        yield "brown-out", f"level {figures.brownout}", "of 3; 0 is none"

    def _bar(self, blocks: BlockFigures) -> Text:
        """Return the blocks by state as one bar; a state that has any is at least one character."""
        signs, bar = _SIGNS if self._is_unicode else _ASCII_SIGNS, Text()
        for name, style in _STYLES.items():
            count = getattr(blocks, name)
            bar.append(signs[name] * max(round(BAR_WIDTH * count / max(blocks.total, 1)), min(count, 1)), style)
        return bar


def line_of(figures: EngineFigures) -> str:
    """Return figures as one line."""
    blocks, first, between = figures.blocks, figures.first_token_ms, figures.between_tokens_ms
    times = f"first token {_median(first)}, between tokens {_median(between)}"
    return (
        f"{visible(figures.model)} {figures.state}: {figures.running} running, {figures.waiting} waiting, "
        f"{figures.paused} paused, {figures.tokens_per_s:,.1f} tokens/s, {blocks.used} of {blocks.total} blocks used, "
        f"{blocks.cached} cached, {times}, cache hits {_share(figures.hit_rate)}"
    )


def _blocks_line(blocks: BlockFigures) -> str:
    counts = ", ".join(f"{getattr(blocks, name):,} {name}" for name in _STYLES)
    host = f"; {blocks.host:,} in host memory" if blocks.host else ""
    return f"{blocks.total:,} blocks: {counts}{host}"


def _median(percentiles: Percentiles | None) -> str:
    return _ms(percentiles.p50 if percentiles else None)


def _tail(percentiles: Percentiles | None) -> str:
    return f"p95 {_ms(percentiles.p95)}, p99 {_ms(percentiles.p99)}" if percentiles else "none in the last minute"


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f} ms"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"
