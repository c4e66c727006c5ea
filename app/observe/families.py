"""Prometheus metric families: counts that parts declare, with the labels of one server, and histograms."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from app.contract.counts import MetricFamily, Values, values_of

ENGINE = "engine"
"""The label that a family has only if it is `of_engine`."""
_KINDS: Mapping[str, type[CounterMetricFamily | GaugeMetricFamily]] = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
}


class Families:
    """Makes metric families of counts, with `labels` on every sample."""

    def __init__(self, labels: Mapping[str, str]) -> None:
        self._labels = labels

    def of(self, parts: Iterable[object]) -> Iterator[Metric]:
        """Yield the families of the counts of all parts; one that several parts share has the values of all."""
        found: dict[MetricFamily, Values] = {}
        for part in parts:
            for family, values in values_of(part):
                others = found.get(family)
                if isinstance(others, Mapping) and isinstance(values, Mapping):
                    values = {**others, **values}
                found[family] = values
        for family, values in found.items():
            yield self.family(family, values)

    def family(self, family: MetricFamily, values: Values) -> Metric:
        """Return one family: a sample, or one for each value of the labels that it has of its own."""
        labels = {name: value for name, value in self._labels.items() if family.of_engine or name != ENGINE}
        made: GaugeMetricFamily | CounterMetricFamily = _KINDS[family.kind](
            family.name, family.help, labels=[*labels, *family.by]
        )
        if not isinstance(values, Mapping):
            made.add_metric([*labels.values()], values)
            return made
        for own, value in values.items():
            made.add_metric([*labels.values(), *((own,) if isinstance(own, str) else own)], value)
        return made


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

    @property
    def sum(self) -> float:
        """The sum of all values."""
        return self._sum

    @property
    def counts(self) -> tuple[int, ...]:
        """The number of values in each bucket; the last one has no upper bound."""
        return tuple(self._counts)

    def quantile(self, share: float, since: Sequence[int]) -> float | None:
        """Return the value below which a share (0 to 1) of the values is, without those that `since` counts.

        It is interpolated within its bucket; the highest bound for one beyond it; None if there are no values.
        """
        counts = [count - before for count, before in zip(self._counts, since, strict=True)]
        rest = share * sum(counts)
        lower = 0.0
        for count, upper in zip(counts, self._bounds, strict=False):
            if count and rest <= count:
                return lower + (upper - lower) * rest / count
            rest -= count
            lower = upper
        return lower if any(counts) else None

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
