"""Histograms of times in buckets of one per cent, which can be merged across processes."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping

LEAST_S = 1e-6
_PER_E = 1 / math.log(1.01)


class Histogram:
    """Counts of times in seconds; times below a microsecond count as one microsecond."""

    def __init__(self, counts: Mapping[int, int] | None = None, longest: float = 0.0) -> None:
        self._values = array("d")  # sorted into buckets only when read
        self._counts = Counter(counts or {})
        self._longest = longest

    @classmethod
    def from_json(cls, found: Mapping[str, object]) -> Histogram:
        """Return the histogram of a `to_json`."""
        counts, longest = found["counts"], found["longest"]
        assert isinstance(counts, dict)
        assert isinstance(longest, (int, float))
        return cls({int(bucket): count for bucket, count in counts.items()}, longest)

    @classmethod
    def merge(cls, parts: Iterable[Histogram]) -> Histogram:
        """Merge several histograms."""
        merged = cls()
        for part in parts:
            part._sort()
            merged._counts += part._counts
            merged._longest = max(merged._longest, part._longest)
        return merged

    @property
    def longest(self) -> float:
        """The longest time, exactly; 0 if empty."""
        self._sort()
        return self._longest

    def __len__(self) -> int:
        return self._counts.total() + len(self._values)

    def add(self, seconds: float) -> None:
        """Count a time."""
        self._values.append(seconds)

    def percentile(self, share: float) -> float:
        """Return the percentile `share` (0..1) to a per cent; 0 if empty."""
        self._sort()
        rest = math.ceil(share * self._counts.total())
        for bucket in sorted(self._counts):
            rest -= self._counts[bucket]
            if rest <= 0:
                return LEAST_S * math.exp((bucket + 0.5) / _PER_E)
        return 0.0

    def to_json(self) -> dict[str, object]:
        """Return the counts by bucket."""
        self._sort()
        return {"counts": {str(bucket): count for bucket, count in self._counts.items()}, "longest": self._longest}

    def _sort(self) -> None:
        values, self._values = self._values, array("d")
        if values:
            self._longest = max(self._longest, max(values))
            self._counts.update(int(math.log(max(value, LEAST_S) / LEAST_S) * _PER_E) for value in values)
