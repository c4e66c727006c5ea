"""Suggestions for misspelt names: a name that begins with what was given, else one that is a few typing errors away."""

from __future__ import annotations

from collections.abc import Iterable

MIN_CHARS = 3  # of a beginning: two letters begin too much
MAX_SUGGESTIONS = 3
MAX_ERRORS = 3
CHARS_PER_ERROR = 4


def nearest(name: str, known: Iterable[str]) -> str:
    """Return `; did you mean '...'` for the beginning of a name or a misspelt one, else an empty string.

    A far suggestion misleads: at most one typing error in four letters (an exchange of two neighbours is one), at most
    three in all. The cost is bounded however long `name` is. Any thread.
    """
    meant = _begun(name, known := list(dict.fromkeys(known))) or _misspelt(name, known)
    if not meant:
        return ""
    *others, last = map(repr, meant)
    return f"; did you mean {', '.join(others)} or {last}" if others else f"; did you mean {last}"


def _begun(name: str, known: list[str]) -> list[str]:
    """Return the names that begin with `name`; none if they are too many to help."""
    given = _letters(name)
    found = [each for each in known if len(given) >= MIN_CHARS and _letters(each).startswith(given)]
    return found if len(found) <= MAX_SUGGESTIONS else []


def _misspelt(name: str, known: list[str]) -> list[str]:
    given = _letters(name)
    most = min(max(1, len(given) // CHARS_PER_ERROR), MAX_ERRORS, len(given) - 1)
    near = [each for each in known if abs(len(_letters(each)) - len(given)) <= most]
    errors = {each: _typing_errors(given, _letters(each)) for each in near}
    best = min(errors, key=lambda each: errors[each], default=None)
    return [best] if best is not None and errors[best] <= most else []


def _letters(name: str) -> str:
    """Return the letters of a name that are compared: `max-num-seqs` for `--max_num_seqs`."""
    return name.lstrip("-").replace("_", "-").lower()


def _typing_errors(given: str, meant: str) -> int:
    """Return the fewest letters to insert, leave out, replace, or exchange with the next one, to get from one to other.

    The optimal string alignment distance: row i has the distances of the first i letters to all beginnings of `meant`.
    """
    before, row = [0] * (len(meant) + 1), list(range(len(meant) + 1))
    for i, letter in enumerate(given, 1):
        last, before, row = before, row, [i]
        for j, other in enumerate(meant, 1):
            errors = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (letter != other))
            if i > 1 and j > 1 and letter == meant[j - 2] and given[i - 2] == other:
                errors = min(errors, last[j - 2] + 1)
            row.append(errors)
    return row[-1]
