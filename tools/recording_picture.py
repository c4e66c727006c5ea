"""Draws what terminals showed as an SVG that moves: each piece of text appears when it was written.

Terminals stand below each other, and what is too long for one moves up. The picture starts again some seconds after its
end; where pictures do not move, as on paper, it shows the end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape

COLUMNS = 100
CHAR, LINE = 7.8, 17.0  # the size of a character, in pixels; its width is enforced, whatever the font
MARGIN, TITLE = 14.0, 28.0
GAP = 7.0
WIDTH = round(2 * MARGIN + COLUMNS * CHAR)
HELD_S = 5.0
"""How long the picture shows the end."""
FRAME_S = 0.04
"""What is written within this time of another piece appears with it."""
_STYLE = """
text { font: 13px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; fill: #d7dae0;
       white-space: pre; }
.title { fill: #8b93a1; } .typed { fill: #7ee08a; font-weight: bold; }
g { animation: none %(length).2fs step-end infinite; }
@media (prefers-reduced-motion: reduce) { g { animation: none !important; } }
"""


@dataclass(frozen=True, slots=True)
class Piece:
    """Text that was written in a terminal, in seconds after the beginning; or was typed there, as a command."""

    terminal: str
    time_s: float
    text: str
    is_typed: bool = False


@dataclass(frozen=True, slots=True)
class _Run:
    """Characters beside each other, and where they begin."""

    row: int
    column: int
    text: str


class _Screen:
    """A terminal that only goes on writing.

    Attributes:
        drawn: the elements of its text.
        scrolled: how many rows have moved out of it, by the numbers of the frames in which more have.
    """

    def __init__(self, num_rows: int) -> None:
        self.drawn: list[str] = []
        self.scrolled: dict[int, int] = {0: 0}
        self._num_rows = num_rows
        self._row = self._column = 0

    def show(self, piece: Piece, frame: int) -> None:
        """Add a piece in a frame; frames come in their order."""
        runs = "".join(_text(run, piece.is_typed) for run in self._write(piece.text))
        self.drawn.append(f'<g style="animation-name:f{frame}">{runs}</g>' if frame else runs)
        num_rows = self._row + (self._column > 0)
        if num_rows - self._num_rows > [*self.scrolled.values()][-1]:
            self.scrolled[frame] = num_rows - self._num_rows

    def pane(self, number: int, title: str, y: float) -> str:
        """Return the element of the terminal, which begins there."""
        height = self._num_rows * LINE + 4
        box = f'<rect width="{WIDTH}" height="{pane_height(self._num_rows):g}" rx="8" fill="#1b1e25"/>'
        moved = f"transform:translateY({-LINE * [*self.scrolled.values()][-1]:g}px)"
        return (
            f'<svg y="{y:g}">{box}<text class="title" x="{MARGIN:g}" y="18">{escape(title)}</text>'
            f'<svg y="{TITLE:g}" width="{WIDTH}" height="{height:g}">'
            f'<g style="animation-name:s{number};{moved}">{"".join(self.drawn)}</g></svg></svg>'
        )

    def _write(self, text: str) -> Iterator[_Run]:
        """Yield the runs of a text, which is wrapped at the end of a row."""
        for line in text.splitlines(keepends=True):
            bare = line.rstrip("\r\n")
            while bare:
                if self._column == COLUMNS:
                    self._row, self._column = self._row + 1, 0
                part, bare = bare[: COLUMNS - self._column], bare[COLUMNS - self._column :]
                yield _Run(self._row, self._column, part)
                self._column += len(part)
            if line.endswith("\n"):
                self._row, self._column = self._row + 1, 0


def draw(terminals: Mapping[str, int], pieces: Sequence[Piece], description: str) -> str:
    """Return the SVG of terminals, by title with their numbers of rows, from pieces in the order of their times.

    `description` says what is to be seen, for those who do not see it.
    """
    length_s = max(piece.time_s for piece in pieces) + HELD_S
    frames = _frames(pieces)
    screens = {title: _Screen(num_rows) for title, num_rows in terminals.items()}
    for number, frame in enumerate(frames):
        for piece in frame:
            screens[piece.terminal].show(piece, number)
    shares = [100 * frame[0].time_s / length_s if number else 0.0 for number, frame in enumerate(frames)]
    style = [_STYLE % {"length": length_s}]
    style += [
        f"@keyframes f{n}{{0%{{visibility:hidden}}{share:.2f}%{{visibility:visible}}}}"
        for n, share in enumerate(shares)
        if n
    ]
    panes, top = [], 0.0
    for number, (title, screen) in enumerate(screens.items()):
        steps = "".join(
            f"{shares[n]:.2f}%{{transform:translateY({-LINE * rows:g}px)}}" for n, rows in screen.scrolled.items()
        )
        style.append(f"@keyframes s{number}{{{steps}}}")
        panes.append(screen.pane(number, title, top))
        top += pane_height(terminals[title]) + GAP
    box = f'viewBox="0 0 {WIDTH} {top - GAP:g}" width="{WIDTH}"'
    head = f"<title>{escape(description)}</title>\n<style>" + "\n".join(style) + "</style>"
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" {box} role="img">', head, *panes, "</svg>\n"])


def pane_height(num_rows: int) -> float:
    """Return the height of a terminal with so many rows, in pixels."""
    return TITLE + num_rows * LINE + MARGIN


def _frames(pieces: Sequence[Piece]) -> list[list[Piece]]:
    """Divide the pieces into those that appear together; the first frame is there from the beginning."""
    frames: list[list[Piece]] = [[]]
    begins_s = 0.0
    for piece in pieces:
        if piece.time_s > begins_s + FRAME_S:
            frames.append([])
            begins_s = piece.time_s
        frames[-1].append(piece)
    return frames


def _text(run: _Run, is_typed: bool) -> str:
    x, y = MARGIN + run.column * CHAR, (run.row + 1) * LINE - 3
    typed = ' class="typed"' if is_typed else ""
    return f'<text{typed} x="{x:g}" y="{y:g}" textLength="{len(run.text) * CHAR:g}">{escape(run.text)}</text>'
