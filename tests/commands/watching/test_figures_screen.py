"""What `quire top` draws, and the line that it writes where there is no terminal."""

import io

import msgspec
from rich.console import Console

from app.commands.watching.figures_screen import BAR_WIDTH, FullScreen, LinesScreen, line_of
from app.commands.watching.sparkline import Sparkline
from app.contract.engine_figures import BlockFigures, Percentiles
from tests.streaming.live.pictures import FIGURES

BUSY = msgspec.structs.replace(
    FIGURES,
    running=3,
    waiting=12,
    first_token_ms=Percentiles(12.5, 40.0, 1234.5),
    blocks=BlockFigures(total=1000, free=100, cached=300, used=599, fenced=1, host=4),
)


def drawn(*all_figures, encoding: str = "utf-8") -> str:
    """The screen after these figures, as text."""
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    console = Console(file=stream, width=100)
    screen = FullScreen("http://127.0.0.1:8000", console)
    shown = [screen.drawn(figures) for figures in all_figures]
    console.print(shown[-1])
    stream.flush()
    stream.seek(0)
    return stream.read()


def test_the_screen_has_the_figures_and_a_bar_of_blocks():
    text = drawn(BUSY)
    shown = [
        "guide", "ready", "http://127.0.0.1:8000", "410.5", "2.4 ms", "12.5 ms", "p95 40.0 ms", "1,234.5 ms", "25%",
        "1,000 blocks: 599 used, 1 fenced, 300 cached, 100 free; 4 in host memory", "q quits",
    ]  # fmt: skip
    assert [words for words in shown if words not in text] == []
    assert text.count("█") >= 36 and text.count("▓") == 1 and text.count("▒") == 18
    assert "none in the last minute" in text


def test_sparklines_remember():
    text = drawn(FIGURES, msgspec.structs.replace(FIGURES, tokens_per_s=0.0), FIGURES)
    assert "█▁█" in text


def test_without_unicode_all_is_ascii():
    text = drawn(BUSY, encoding="ascii")
    assert text.isascii() and "#" * 36 in text and "!" in text


def test_a_model_cannot_control_the_terminal():
    assert "\x1b" not in drawn(msgspec.structs.replace(FIGURES, model="a\x1b[31m[bold]b"))
    assert "\x1b" not in line_of(msgspec.structs.replace(FIGURES, model="a\x1b[31mb"))


def test_a_line_has_the_counts():
    lines: list[str] = []
    LinesScreen(lines.append).show(BUSY)
    assert lines == [
        "guide ready: 3 running, 12 waiting, 0 paused, 410.5 tokens/s, 599 of 1000 blocks used, 300 cached, "
        "first token 12.5 ms, between tokens -, cache hits 25%"
    ]


def test_a_bar_is_at_most_as_wide_as_its_width_but_for_states_with_few_blocks():
    assert drawn(msgspec.structs.replace(FIGURES, blocks=BlockFigures(0, 0, 0, 0, 0, 0))).count("█") <= BAR_WIDTH


def test_a_sparkline_goes_from_0_to_its_largest_value():
    line = Sparkline(4, is_unicode=True)
    assert str(line) == ""
    for value in (9, 0, 1, 2, 4):
        line.add(value)
    assert str(line) == "▁▃▅█"
    zeros = Sparkline(4, is_unicode=False)
    zeros.add(0)
    assert str(zeros) == "_"
