"""A part of a page that is made from the code, between two marks; the rest of the page is written by hand."""

from __future__ import annotations

END = "<!-- made: end -->\n"


def with_part(page: str, begin: str, part: str) -> str:
    """Return the page with `part` between the mark `begin` and the next `END`.

    Raises:
        ValueError: the marks are not there.
    """
    before, rest = page.split(begin)
    _, end, after = rest.partition(END)
    if not end:
        raise ValueError(f"the part after {begin.strip()!r} has no mark of its end")
    return f"{before}{begin}\n{part}\n{END}{after}"
