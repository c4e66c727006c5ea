"""Chooses how answers are parsed, from the source of a chat template."""

from __future__ import annotations

from app.text.answer.reasoning import STYLES, ReasoningStyle
from app.text.calls.formats import FORMATS, GENERIC, CallFormat

AUTO, NONE = "auto", "none"
# Templates of families without a row have these beside the marks of others.
_UNKNOWN = ("<invoke", "DSML")


def mentions_tools(source: str) -> bool:
    """Return whether a template does anything with tools."""
    return "tools" in source


def choose_format(source: str, setting: str = AUTO) -> CallFormat | None:
    """Return the format of a template's calls, or the one named by `--tool-parser`; None if calls are not parsed."""
    if setting == NONE:
        return None
    if setting != AUTO:
        return FORMATS[setting]
    row = next((row for row in FORMATS.values() if row.is_told_by(source)), None)
    known = "" if row is None else "".join(row.syntax.marks)
    if any(mark in source and mark not in known for mark in _UNKNOWN):
        return None
    if row is None:
        return None if mentions_tools(source) else GENERIC
    return row.narrowed(source)


def is_generic(source: str) -> bool:
    """Return whether a template has nothing about tools, so that our own text asks for calls."""
    return not mentions_tools(source) and not any(row.is_told_by(source) for row in FORMATS.values())


def choose_reasoning(source: str, setting: str = AUTO) -> ReasoningStyle | None:
    """Return the style of a template's reasoning, or the one named by `--reasoning-parser`; None if there is none."""
    if setting == NONE:
        return None
    if setting != AUTO:
        return STYLES[setting]
    # OLMo 3's template begins the reasoning of an answer, and has no other mark of it.
    return next((style for style in STYLES.values() if style.close in source or style.open in source), None)
