"""A terminal as a grid of characters: what a user sees of output with sequences."""

import re
import unicodedata

_COVERED = "\uffff"  # the second column of a wide character
_TOKEN = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])|([^\x1b])", re.DOTALL)


class Emulator:
    """Knows the sequences that Quire writes, and fails at any other. Lines above the screen stay as they were.

    A row that is full goes on in the next one, as in a terminal: behind its last character the cursor waits there for
    the next one. Such rows are in `run_on`; prose is never among them.
    """

    def __init__(self, width: int = 80, height: int = 24) -> None:
        self.run_on: set[int] = set()
        self.lines = [""]
        self.width, self.height = width, height
        self.row = self.column = 0
        self.num_cleared = 0

    def feed(self, text: str) -> None:
        """Show output, as a terminal gets it (`\\n` alone also goes to the begin of the line)."""
        position = 0
        while position < len(text):
            token = _TOKEN.match(text, position)
            assert token is not None, f"an unknown sequence: {text[position : position + 12]!r}"
            position = token.end()
            if token[3] is not None:
                self._put(token[3])
            else:
                self._obey(token[1], token[2])

    def _put(self, char: str) -> None:
        if char == "\r":
            self.column = 0
        elif char == "\n":
            self.row, self.column = self.row + 1, 0
        else:
            assert char.isprintable(), f"a control character: {char!r}"
            shown = char + (_COVERED if unicodedata.east_asian_width(char) in "WF" else "")
            if self.column + len(shown) > self.width:
                self.run_on.add(self.row)
                self.row, self.column = self.row + 1, 0
                self.lines += [""] * (self.row + 1 - len(self.lines))
            line = self.lines[self.row].ljust(self.column)
            self.lines[self.row] = line[: self.column] + shown + line[self.column + len(shown) :]
            self.column += len(shown)
        while len(self.lines) <= self.row:
            self.lines.append("")

    def _obey(self, parameters: str, kind: str) -> None:
        if kind == "A":
            top = max(0, len(self.lines) - self.height)
            self.row = max(self.row - int(parameters or 1), top)
        elif kind == "K":
            self.column = min(self.column, self.width - 1)
            self.run_on.discard(self.row)
            self.lines[self.row] = self.lines[self.row][: self.column]
        elif kind == "J":
            self._obey("", "K")
            del self.lines[self.row + 1 :]
            self.run_on = {row for row in self.run_on if row < self.row}
            self.num_cleared += 1
        else:
            assert kind == "m", f"a sequence that moves or sets: {parameters}{kind}"

    @property
    def shown(self) -> str:
        """All rows, without blanks at their ends."""
        return "\n".join(line.rstrip() for line in self.lines).rstrip().replace(_COVERED, "")

    @property
    def copied(self) -> str:
        """The text that somebody copies with the mouse: rows that go on are one line."""
        ends = ["" if row in self.run_on else "\n" for row in range(len(self.lines))]
        return "".join(line + end for line, end in zip(self.lines, ends, strict=True)).replace(_COVERED, "")
