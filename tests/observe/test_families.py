"""Metric families carry the labels of their server."""

from dataclasses import dataclass

from app.contract.counts import Counts, MetricFamily, counter, gauge, shown_as
from app.observe.families import Families

SERVER = {"model_name": "guide", "engine": "0"}
BYTES = MetricFamily("bytes", "gauge", "Bytes by kind.", ("kind",))


@dataclass(slots=True)
class Plain(Counts):
    """Two numbers."""

    held: int = gauge("g", "help")
    seen: int = counter("c", "help")


@dataclass(slots=True)
class Labelled(Counts):
    """A family with labels of its own."""

    answers: dict = counter("answers", "help", by=("route", "code"), start={})
    by_kind: dict = shown_as(BYTES, {"a": 1})


@dataclass(slots=True)
class More(Counts):
    """Of another part, and in the same family."""

    by_kind: dict = shown_as(BYTES, {"b": 2})


def samples(family):
    """Name, labels and value of every sample."""
    return [(sample.name, sample.labels, sample.value) for sample in family.samples]


def made_of(*parts):
    """The samples of all families by their names."""
    return {family.name: samples(family) for family in Families(SERVER).of(parts)}


def test_plain_families_have_one_sample():
    assert made_of(Plain(3, 4)) == {"g": [("g", SERVER, 3)], "c": [("c_total", SERVER, 4)]}


def test_families_with_labels_have_a_sample_for_each_of_their_values():
    found = made_of(Labelled({("/x", "200"): 5, ("/x", "404"): 6}))["answers"]
    assert found == [
        ("answers_total", {**SERVER, "route": "/x", "code": "200"}, 5),
        ("answers_total", {**SERVER, "route": "/x", "code": "404"}, 6),
    ]


def test_parts_share_a_family():
    assert [(labels["kind"], value) for _, labels, value in made_of(Labelled(), More())["bytes"]] == [
        ("a", 1),
        ("b", 2),
    ]
