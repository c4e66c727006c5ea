"""Events of a section's process: a line of JSON for each event, in a file that survives a crash. No torch.

Events are `begin`, `figure`, `end` and `failed`, each with the row's name; a truncated line is ignored.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.gpu.figures import Figure

MAX_SAID = 4000  # characters of a failure that are kept: the end of a traceback


class EventWriter:
    """The section's side."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def begin(self, row: str) -> None:
        """The row begins."""
        self._write({"event": "begin", "row": row})

    def figure(self, row: str, figure: Figure) -> None:
        """The row has measured something."""
        self._write({"event": "figure", "row": row, "figure": figure.to_json()})

    def end(self, row: str) -> None:
        """The row is done."""
        self._write({"event": "end", "row": row})

    def failed(self, row: str, said: str, *, is_final: bool = False) -> None:
        """The row cannot go on; `is_final`: nor would it if it was tried again."""
        self._write({"event": "failed", "row": row, "said": said[-MAX_SAID:], "is_final": is_final})

    def _write(self, event: Mapping[str, Any]) -> None:
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(event) + "\n")


class EventReader:
    """The other side: gives each event once."""

    def __init__(self, file: Path) -> None:
        file.write_bytes(b"")
        self._file = file.open(encoding="utf-8", errors="replace")
        self._begun = ""

    def read(self) -> list[dict[str, Any]]:
        """Return the events since the last call."""
        *lines, self._begun = (self._begun + self._file.read()).split("\n")
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]

    def close(self) -> None:
        """Read no more."""
        self._file.close()
