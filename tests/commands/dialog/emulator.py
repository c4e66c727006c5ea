"""A terminal as a grid of characters: what a user sees of output with sequences."""

import re

_TOKEN = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])|([^\x1b])", re.DOTALL)


class Emulator:
    """Knows the sequences that Quire writes, and fails at any other. Lines above the screen stay as they were."""

    def __init__(self, width: int = 80, height: int = 24) -> None:
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
            assert self.column < self.width, f"a line is wider than the terminal: {self.lines[self.row]!r}"
            line = self.lines[self.row].ljust(self.column)
            self.lines[self.row] = line[: self.column] + char + line[self.column + 1 :]
            self.column += 1
        while len(self.lines) <= self.row:
            self.lines.append("")

    def _obey(self, parameters: str, kind: str) -> None:
        if kind == "A":
            top = max(0, len(self.lines) - self.height)
            self.row = max(self.row - int(parameters or 1), top)
        elif kind == "K":
            self.lines[self.row] = self.lines[self.row][: self.column]
        elif kind == "J":
            self._obey("", "K")
            del self.lines[self.row + 1 :]
            self.num_cleared += 1
        else:
            assert kind == "m", f"a sequence that moves or sets: {parameters}{kind}"

    @property
    def shown(self) -> str:
        """All lines, without blanks at their ends."""
        return "\n".join(line.rstrip() for line in self.lines).rstrip()
