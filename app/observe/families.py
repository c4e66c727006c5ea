"""Prometheus metric families: gauges and counters with the labels of one server, and histograms."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

Values = float | Mapping[str, float]


class Families:
    """Makes gauges and counters with `labels` on every sample.

    With a label `by`, a family has one sample for each of its values, else a single one.
    """

    def __init__(self, labels: Mapping[str, str]) -> None:
        self._labels = labels

    def gauge(self, name: str, help: str, values: Values, by: str | None = None) -> Metric:
        """Return a gauge."""
        return self._filled(GaugeMetricFamily(name, help, labels=self._names(by)), values)

    def counter(self, name: str, help: str, values: Values, by: str | None = None) -> Metric:
        """Return a counter; its samples add `_total` to `name`."""
        return self._filled(CounterMetricFamily(name, help, labels=self._names(by)), values)

    def _names(self, by: str | None) -> list[str]:
        return [*self._labels, *([] if by is None else [by])]

    def _filled(self, family: GaugeMetricFamily | CounterMetricFamily, values: Values) -> Metric:
        for kind, value in values.items() if isinstance(values, Mapping) else [(None, values)]:
            family.add_metric([*self._labels.values(), *([] if kind is None else [kind])], value)
        return family


class Histogram:
    """A histogram to which many equal observations can be added at once. Loop only.

    The histogram of prometheus_client takes a lock and walks its buckets for every observation. Here all equal
    observations of a step cost one binary search.
    """

    def __init__(self, name: str, help: str, bounds: Sequence[float]) -> None:
        self._name = name
        self._help = help
        self._bounds = list(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float, count: int = 1) -> None:
        """Add `value` `count` times."""
        self._counts[bisect_left(self._bounds, value)] += count
        self._sum += value * count

    def family(self, labels: dict[str, str]) -> HistogramMetricFamily:
        """Return the current state as a metric family with one set of labels."""
        family = HistogramMetricFamily(self._name, self._help, labels=list(labels))
        self.add_to(family, labels)
        return family

    def add_to(self, family: HistogramMetricFamily, labels: dict[str, str]) -> None:
        """Add the current state to a family with the same bounds, with other label values."""
        bounds = [*map(str, map(float, self._bounds)), "+Inf"]
        buckets = list(zip(bounds, accumulate(self._counts), strict=True))
        family.add_metric(list(labels.values()), buckets, self._sum)
