"""Where the figures of benchmarks are kept, and how they are written."""

from __future__ import annotations

import json
from pathlib import Path

RESULTS = Path(__file__).parent / "results"


def write_json(file: Path, found: object) -> None:
    """Write a JSON file that is whole at any time; its folder is made."""
    file.parent.mkdir(exist_ok=True)
    part = file.with_suffix(".part")
    part.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    part.replace(file)
