"""Predicts the lengths of answers from the requests that have ended.

A request falls into ever finer buckets: all requests; its tenant's; those of them with a similar max_tokens; of those
the ones with a similar prompt length ("similar": the same power of two). Each bucket keeps the running mean of
log2(length), because lengths spread over powers of two. A bucket's weight is the number of requests it has seen,
against `_TRUST` for the next coarser bucket, so a new bucket predicts what the next coarser one does, and lengths that
depend on none of these features are predicted as their common mean.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from math import log2
from typing import NamedTuple

from app.contract.engine_counts import PredictionAccuracy
from app.contract.requests import EngineRequest

# Tokens; the prediction before any request has ended (the median of chat answers is about 200).
_FIRST_ESTIMATE = 256
# The coarser bucket counts as much as this many requests of the finer one.
_TRUST = 8
# Requests after which a bucket has forgotten two thirds of the past: lengths drift with the kind of requests.
_WINDOW = 32
# The same for the figures about the predictions themselves, which should be steady.
_ACCURACY_WINDOW = 1024
# Beyond this number the least recently used bucket is forgotten. A bucket takes about 300 bytes.
_MAX_BUCKETS = 4096

_Bucket = tuple[str | int | None, ...]


@dataclass(slots=True)
class _RunningMean:
    """A plain mean until `window` values were seen, an exponentially forgetting one afterwards."""

    mean: float = 0.0
    num_values: int = 0

    def add(self, value: float, window: int) -> None:
        self.num_values += 1
        self.mean += (value - self.mean) / min(self.num_values, window)


class _Outcome(NamedTuple):
    """A request that has ended; lengths as log2."""

    buckets: tuple[_Bucket, ...]
    predicted: float
    actual: float


class LengthPredictor:
    """Predicts the output tokens of requests; O(1) per request and bounded in memory. Engine thread only; pure."""

    def __init__(self) -> None:
        self._means: OrderedDict[_Bucket, _RunningMean] = OrderedDict()  # of log2(length)
        self._pending: list[_Outcome] = []  # ended, not learned yet
        self._error = _RunningMean()
        self._constant_error = _RunningMean()
        self._rank = _RunningMean()

    @property
    def accuracy(self) -> PredictionAccuracy:
        """The accuracy so far (all zero at first)."""
        return PredictionAccuracy(self._error.num_values, self._error.mean, self._constant_error.mean, self._rank.mean)

    def predict(self, request: EngineRequest) -> float:
        """Return how many tokens all sequences of `request` together will probably generate."""
        return float(2 ** self._estimates(request)[-1]) * request.params.num_sequences

    def learn(self, request: EngineRequest, num_output_tokens: int) -> None:
        """Learn how many tokens all sequences of `request` generated until their ends; 0 is left out."""
        if not num_output_tokens:
            return
        actual = log2(max(1, num_output_tokens // request.params.num_sequences))
        constant, *_, predicted = self._estimates(request)
        self._error.add(abs(predicted - actual), _ACCURACY_WINDOW)
        self._constant_error.add(abs(constant - actual), _ACCURACY_WINDOW)
        self._pending.append(_Outcome(_buckets(request), predicted, actual))
        if len(self._pending) == 2:  # both were predicted before either was learned, so the two can be compared
            first, second = self._pending
            if first.actual != second.actual:
                is_right = (first.predicted < second.predicted) == (first.actual < second.actual)
                self._rank.add(0.5 if first.predicted == second.predicted else is_right, _ACCURACY_WINDOW)
            for outcome in self._pending:
                for bucket in outcome.buckets:
                    self._means.setdefault(bucket, _RunningMean()).add(outcome.actual, _WINDOW)
                    self._means.move_to_end(bucket)
                while len(self._means) > _MAX_BUCKETS:
                    self._means.popitem(last=False)
            self._pending.clear()

    def _estimates(self, request: EngineRequest) -> list[float]:
        """Return log2 of the length as each bucket predicts it, from the coarsest to the finest."""
        most = log2(_max_tokens(request))
        estimate, estimates = log2(_FIRST_ESTIMATE), []
        for key in _buckets(request):
            bucket = self._means.get(key)
            if bucket is not None:
                estimate = (bucket.num_values * bucket.mean + _TRUST * estimate) / (bucket.num_values + _TRUST)
            estimates.append(min(estimate, most))
        return estimates


def _buckets(request: EngineRequest) -> tuple[_Bucket, ...]:
    """Return the buckets of a request, from the coarsest to the finest."""
    tenant = request.tenant
    max_octave = _max_tokens(request).bit_length()
    return (), (tenant,), (tenant, max_octave), (tenant, max_octave, len(request.prompt_token_ids).bit_length())


def _max_tokens(request: EngineRequest) -> int:
    max_tokens = request.params.max_tokens
    assert max_tokens is not None, "admission sets max_tokens"
    return max_tokens
