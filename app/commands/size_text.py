"""Sizes as text."""

from __future__ import annotations

from app.config.setting import KIB

UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def size(num_bytes: int) -> str:
    """Return a number of bytes in the unit that needs the fewest digits."""
    value = num_bytes / KIB
    unit = UNITS[0]
    for unit in UNITS:
        if value < 999.95 or unit == UNITS[-1]:
            break
        value /= KIB
    text = f"{value:,.1f}"
    return f"{text.removesuffix('.0') if unit == UNITS[0] else text} {unit}"
