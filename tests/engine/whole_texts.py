"""A hundred whole texts that repeat much, and must not be taken for a loop: tables, arrays, hex dumps and code."""

from __future__ import annotations

import calendar
import math
import random
import zlib
from collections.abc import Callable, Iterator

from tests.house.source import ROOT

WORDS = ("apples", "pears", "plums", "bread", "salt", "tea", "rice", "oats", "milk", "eggs", "flour", "sugar", "figs")


def whole_texts() -> dict[str, str]:
    """The texts by name, 25 of each kind; always the same."""
    made = {
        f"{kind.__name__} {number}": kind(random.Random(number), number)
        for kind in (table, array, dump)
        for number in range(25)
    }
    return made | dict(code())


def rows_of(rng: random.Random, num_rows: int, cell: Callable[[int, int], str], num_columns: int) -> list[list[str]]:
    """The cells of a table, the name of a row first."""
    return [
        [f"{rng.choice(WORDS)} {row + 1}", *(cell(row, column) for column in range(num_columns))]
        for row in range(num_rows)
    ]


def markdown(rows: list[list[str]]) -> str:
    """A Markdown table whose cells are filled up with blanks."""
    head = ["item", *(f"day {column}" for column in range(1, len(rows[0])))]
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    lines = [[cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in [head, *rows]]
    lines.insert(1, ["-" * width for width in widths])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def table(rng: random.Random, number: int) -> str:
    """A table, in one of eight ways to write one."""
    num_rows, num_columns = rng.randint(20, 60), rng.randint(3, 9)
    rare = rows_of(rng, num_rows, lambda row, column: "x" if rng.random() < 0.1 else "", num_columns)
    counts = rows_of(rng, num_rows, lambda row, column: str(rng.choice([0, 0, 0, 0, rng.randint(1, 99)])), num_columns)
    prices = rows_of(rng, num_rows, lambda row, column: f"{rng.uniform(0, 100):.2f}", num_columns)
    ways: list[Callable[[], str]] = [
        lambda: markdown(rare),
        lambda: markdown(counts),
        lambda: markdown(prices),
        lambda: "".join(",".join(row) + "\n" for row in counts),
        lambda: boxed(counts),
        lambda: "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>\n" for row in rare),
        lambda: "\\hline\n".join(" & ".join(row) + " \\\\\n" for row in counts),
        lambda: calendar.TextCalendar().formatyear(2000 + number),
    ]
    return ways[number % len(ways)]()


def boxed(rows: list[list[str]]) -> str:
    """A table with a rule between all rows."""
    rule = "+" + "+".join("-" * 12 for _ in rows[0]) + "+\n"
    return rule + rule.join("|" + "|".join(cell.rjust(11) + " " for cell in row) + "|\n" for row in rows) + rule


def array(rng: random.Random, number: int) -> str:
    """Numbers as programs print them and sources hold them."""
    size = rng.randint(100, 400)
    side = rng.randint(12, 24)
    ways: list[Callable[[], str]] = [
        lambda: str([rng.randint(0, 255) for _ in range(size)]),
        lambda: str([0 if rng.random() < 0.9 else rng.randint(1, 9) for _ in range(size)]),
        lambda: str([round(math.sin(2 * math.pi * k / size), 3) for k in range(size)]),
        lambda: str([[int(row == column) for column in range(side)] for row in range(side)]),
        lambda: "\n".join(" ".join("1" if rng.random() < 0.2 else "0" for _ in range(side)) for _ in range(side)),
        lambda: ", ".join(f"0x{zlib.crc32(bytes([k])):08x}" for k in range(256)),
        lambda: "\n".join(f"{k} {k * k} {k * k * k}" for k in range(size)),
        lambda: str(list(range(0, 5 * size, 5))),
        lambda: str([0] * 50 + [rng.randint(1, 9) for _ in range(50)] + [0] * 50),
        lambda: "[" + ",\n ".join(str([round(rng.gauss(0, 1), 4) for _ in range(6)]) for _ in range(40)) + "]",
        lambda: str([float(rng.random() < 0.15) for _ in range(size)]),
        lambda: ("1 " * 40 + "\n" + "0 " * 40 + "\n") * 2,
    ]
    return ways[number % len(ways)]()


def dump(rng: random.Random, number: int) -> str:
    """Bytes as `xxd` and `hexdump -C` show them: random ones, text, and a header with pages of zeros behind it."""
    raw = [
        rng.randbytes(1500),
        (ROOT / "README.md").read_bytes()[number * 64 :][:1500],
        rng.randbytes(64) + bytes(1200) + rng.randbytes(64),
        b"".join(k.to_bytes(4, "little") for k in range(400)),
        b"\x7fELF\x02\x01\x01" + bytes(57) + b"\xff" * 500 + bytes(500),
    ][number % 5]
    return "".join(
        dump_line(raw[start : start + 16], start, is_wide=number % 2 == 0) for start in range(0, len(raw), 16)
    )


def dump_line(raw: bytes, start: int, *, is_wide: bool) -> str:
    """One line of a dump."""
    shown = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in raw)
    cells = [f"{byte:02x}" for byte in raw] if is_wide else [raw[k : k + 2].hex() for k in range(0, len(raw), 2)]
    return f"{start:08x}: {' '.join(cells)}  {shown}\n"


def code() -> Iterator[tuple[str, str]]:
    """Files of the repository, the longest of each kind: Python, C, JavaScript, styles, tables and data."""
    wanted = {
        "app/**/*.py": 7, "tests/**/*.py": 3, "app/**/*.cpp": 4, "app/static/**/*.js": 4, "app/static/**/*.css": 2,
        "docs/**/*.md": 2, "**/vectors/*.json": 1, "*.toml": 1, "Makefile": 1,
    }  # fmt: skip
    for pattern, count in wanted.items():
        files = [path for path in ROOT.glob(pattern) if "vendor" not in path.parts and "node_modules" not in path.parts]
        for path in sorted(files, key=lambda path: (-path.stat().st_size, path))[:count]:
            yield str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")
