"""Metric families carry the labels of their server."""

from app.observe.families import Families

SERVER = {"model_name": "guide", "engine": "0"}


def samples(family):
    """Name, labels and value of every sample."""
    return [(sample.name, sample.labels, sample.value) for sample in family.samples]


def test_plain_families_have_one_sample():
    make = Families(SERVER)
    assert samples(make.gauge("g", "help", 3)) == [("g", SERVER, 3)]
    assert samples(make.counter("c", "help", 4)) == [("c_total", SERVER, 4)]


def test_families_by_kind_have_a_sample_for_each_kind():
    make = Families(SERVER)
    expected = [(SERVER | {"kind": "a"}, 1), (SERVER | {"kind": "b"}, 2)]
    values = {"a": 1, "b": 2}
    assert [each[1:] for each in samples(make.gauge("g", "help", values, by="kind"))] == expected
    assert [each[1:] for each in samples(make.counter("c", "help", values, by="kind"))] == expected
