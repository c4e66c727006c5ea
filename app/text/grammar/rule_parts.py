"""Rules as trees of parts, and which of them have a complete text. Linear in the number of parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence


class Part:
    """A part of a rule, which is found when `num_needed` of its own parts are.

    With 0 needed it is found at once; with 1 it is a choice among them, and with all of them a sequence. A reference,
    which has no parts, is found with the rule that it names; one to no rule at once.
    """

    __slots__ = ("name", "num_needed", "parts")

    def __init__(self, parts: Sequence[Part] = (), num_needed: int = 0, name: str | None = None) -> None:
        self.parts = parts
        self.num_needed = num_needed
        self.name = name


FREE = Part()
"""What has a complete text."""
DEAD = Part((), 1)
"""What has none."""


def sequence(parts: Sequence[Part]) -> Part:
    """Return the part that is complete when all `parts` are."""
    return Part(parts, len(parts))


def choice(parts: Sequence[Part]) -> Part:
    """Return the part that is complete when one of `parts` is."""
    return Part(parts, 1)


def reference(name: str) -> Part:
    """Return the part that is complete when the rule `name` is."""
    return Part((), 0, name)


def found(rules: Mapping[str, Part]) -> set[str]:
    """Return the names of the rules that are found."""
    missing: dict[int, int] = {}  # how many parts of a part must still be found, by id; shared parts count once each
    above: dict[int, list[Part]] = {}
    references: dict[str, list[Part]] = {name: [] for name in rules}
    names: dict[int, list[str]] = {}
    ready: list[Part] = []
    for name, rule in rules.items():
        names.setdefault(id(rule), []).append(name)
        for part in _parts(rule, missing):
            is_reference = part.name in references
            missing[id(part)] = max(part.num_needed, is_reference)
            for each in part.parts:
                above.setdefault(id(each), []).append(part)
            if is_reference:
                references[str(part.name)].append(part)
            if not missing[id(part)]:
                ready.append(part)
    complete = set[str]()
    while ready:
        part = ready.pop()
        own = names.get(id(part), [])
        complete.update(own)
        for each in [*above.get(id(part), []), *(one for name in own for one in references[name])]:
            missing[id(each)] -= 1
            if missing[id(each)] == 0:
                ready.append(each)
    return complete


def endless(rules: Mapping[str, Part], root: str) -> str | None:
    """Return a rule that is the reason why the rule `root` has no complete text; None if it has one."""
    without = rules.keys() - found(rules)
    name, seen = root, set[str]()
    while name in without and name not in seen:
        seen.add(name)
        name = next((needed for needed in _needed(rules[name]) if needed in without), name)
    return name if seen else None


def _parts(rule: Part, known: Mapping[int, int]) -> Iterator[Part]:
    """Yield the parts of a rule that are not `known` yet."""
    pending = [rule]
    while pending:
        part = pending.pop()
        if id(part) not in known:
            yield part
            pending += part.parts


def _needed(rule: Part) -> Iterator[str]:
    """Yield the rules that a part of a rule has in it and does not leave out."""
    pending, seen = [rule], set[int]()
    while pending:
        part = pending.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        if part.name is not None:
            yield part.name
        if part.num_needed:
            pending += reversed(part.parts)
