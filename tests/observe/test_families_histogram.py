"""Histograms: counts by bound, cumulative when rendered."""

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from prometheus_client import Histogram as Reference

from app.observe.families import Histogram

BOUNDS = (0.5, 1, 2.5)
OBSERVATIONS = st.lists(st.tuples(st.sampled_from([0.0, 0.5, 0.7, 1.0, 2.0, 2.5, 9.0]), st.integers(1, 4)), max_size=8)


@given(OBSERVATIONS)
def test_counts_are_those_of_the_histogram_of_prometheus_client(observations):
    registry = CollectorRegistry()
    reference = Reference("x", "help", buckets=BOUNDS, registry=registry)
    ours = Histogram("x", "help", BOUNDS)
    for value, count in observations:
        ours.observe(value, count)
        for _ in range(count):
            reference.observe(value)
    expected = {
        (sample.name, tuple(sample.labels.items())): sample.value
        for family in registry.collect()
        for sample in family.samples
        if not sample.name.endswith("_created")
    }
    found = {(sample.name, tuple(sample.labels.items())): sample.value for sample in ours.family({}).samples}
    assert found.keys() == expected.keys()
    assert all(abs(found[key] - expected[key]) < 1e-9 for key in found)


def test_labels_are_on_every_sample():
    samples = Histogram("x", "help", BOUNDS).family({"engine": "0"}).samples
    assert samples and all(sample.labels["engine"] == "0" for sample in samples)
