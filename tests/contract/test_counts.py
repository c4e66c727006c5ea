"""Counts declare the families that they are shown as."""

from dataclasses import dataclass, field

from app.contract.counts import Counts, MetricFamily, counter, derived, gauge, values_of


@dataclass(slots=True)
class Inner(Counts):
    """A part with a number, one by kind, and one that follows from them."""

    plain: int = 3
    level: int = gauge("level", "help")
    ends: dict = counter("ends", "help", by=("kind",), start={"a": 0})

    @derived(MetricFamily("double", "gauge", "help"))
    def double(self) -> int:
        """Twice the level."""
        return 2 * self.level


@dataclass(slots=True)
class Outer(Counts):
    """A whole with one part."""

    total: int = counter("total", "help")
    inner: Inner = field(default_factory=Inner)


def test_the_values_of_a_whole_are_its_own_and_those_of_its_parts():
    found = [(family.name, family.kind, values) for family, values in values_of(Outer(1, Inner(level=4)))]
    assert found == [
        ("total", "counter", 1),
        ("level", "gauge", 4),
        ("ends", "counter", {"a": 0}),
        ("double", "gauge", 8),
    ]


def test_every_object_begins_with_values_of_its_own():
    one, other = Inner(), Inner()
    one.ends["a"] += 1
    assert other.ends == {"a": 0}


def test_a_copy_does_not_change_with_what_it_was_copied_from():
    one = Inner(level=4)
    copy = one.copy()
    one.level += 1
    assert copy == Inner(level=4)
