"""What became of grammars that were sent: accepted, at a limit, or rejected, and why."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

NUM_REASONS = 5
REASON_CHARS = 120
LIMITS = (
    "It takes more than",  # processor time or memory of the trial
    "It was not compiled within",
    "Its next tokens take more",
    "Its regular expressions are too complex",
    "It has too many alternatives",
    "It demands a text that is too long",
    "It is too large",
)
"""What the server says of a grammar that costs too much begins with one of these."""
_NUMBERS = re.compile(r"\d+(?:\.\d+)?")
_NAMES = re.compile(r"\"[^\"]*\"|'[^']*'|`[^`]*`")
_PLACE = re.compile(r"^(?:At N\(N\): )?(?:#\S* is )?")


class Outcomes(NamedTuple):
    """How many grammars were accepted, came to which limit, and were rejected for another reason.

    Attributes:
        reasons: the commonest of these, `N` for numbers and `X` for what is quoted.
    """

    num_accepted: int
    limits: dict[str, int]
    num_rejected: int
    reasons: dict[str, int]

    def __str__(self) -> str:
        """Return it as a sentence."""
        return f"{self.num_accepted} accepted, {sum(self.limits.values())} at a limit, {self.num_rejected} rejected"


def outcomes(errors: Iterable[str]) -> Outcomes:
    """Count what became of grammars, by what the server says is wrong: nothing of those that were accepted."""
    num_accepted, limits, reasons = 0, Counter[str](), Counter[str]()
    for error in errors:
        reason = error.partition(" is rejected: ")[2] or error
        if not error:
            num_accepted += 1
        elif reason.startswith(LIMITS):
            limits[reason.partition(". ")[0].rstrip(".")] += 1
        else:
            plain = _NUMBERS.sub("N", _NAMES.sub("X", reason))
            reasons[_PLACE.sub("", plain)[:REASON_CHARS]] += 1
    return Outcomes(num_accepted, dict(limits.most_common()), reasons.total(), dict(reasons.most_common(NUM_REASONS)))
