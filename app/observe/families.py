"""Makes Prometheus metric families with the labels of one server."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily


class Families:
    """Gauges and counters with `labels` on every sample; `..._by` metrics have one sample per value of `label`."""

    def __init__(self, labels: Mapping[str, str]) -> None:
        self._names = list(labels)
        self._values = list(labels.values())

    def gauge(self, name: str, help: str, value: float) -> GaugeMetricFamily:
        """Return a gauge."""
        family = GaugeMetricFamily(name, help, labels=self._names)
        family.add_metric(self._values, value)
        return family

    def gauge_by(self, label: str, name: str, help: str, values: Mapping[str, float]) -> GaugeMetricFamily:
        """Return a gauge with one sample for each of `values`."""
        family = GaugeMetricFamily(name, help, labels=[*self._names, label])
        for kind, value in values.items():
            family.add_metric([*self._values, kind], value)
        return family

    def counter(self, name: str, help: str, value: float) -> CounterMetricFamily:
        """Return a counter; its samples add `_total` to `name`."""
        family = CounterMetricFamily(name, help, labels=self._names)
        family.add_metric(self._values, value)
        return family

    def counter_by(self, label: str, name: str, help: str, values: Mapping[str, float]) -> CounterMetricFamily:
        """Return a counter with one sample for each of `values`."""
        family = CounterMetricFamily(name, help, labels=[*self._names, label])
        for kind, value in values.items():
            family.add_metric([*self._values, kind], value)
        return family
