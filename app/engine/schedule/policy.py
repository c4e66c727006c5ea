"""Scheduling policies: who comes first.

A policy gives each request a sort key once, when it is added; smaller comes first, and the caller breaks ties by
order of arrival. Starting and resuming go from the front of that order, victims are taken from its end. A key never
changes, so the lines stay sorted by themselves; ageing and fairness are in how keys are made.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count
from typing import NamedTuple, Protocol

from app.config import nearest
from app.engine.schedule.length_predictor import LengthPredictor
from app.errors import ConfigurationError
from app.messages import EngineRequest

# One level of `priority` outweighs this much waiting.
AGEING_S = 10.0
# A token that an answer is predicted to be longer outweighs this much waiting: about what a token takes.
SHORTER_S = 0.05


class Policy(Protocol):
    """Who comes first. Engine thread only; pure."""

    def key(self, request: EngineRequest) -> tuple[float, ...]:
        """Return the sort key of a request that is being added; called once for each."""

    def finished(self, request: EngineRequest, num_output_tokens: int) -> None:
        """Take in that a request has ended, however it did; called once for each.

        `num_output_tokens` counts what its sequences generated, all together; 0 if it never came so far.
        """


class Fcfs:
    """First come, first served."""

    def key(self, request: EngineRequest) -> tuple[float, ...]:
        """Return when the request arrived."""
        return (request.arrival_time,)

    def finished(self, request: EngineRequest, num_output_tokens: int) -> None:
        """Nothing is learned."""


class PriorityWithAgeing:
    """By `priority`, lower first, but whoever waits comes nearer.

    Linear ageing: at time t a request's rank is priority - (t - arrival_time) / AGEING_S, the lowest first. Between
    two requests t cancels out: their order never changes and is that of arrival_time + priority * AGEING_S. So a
    request of priority p is overtaken by one of priority q < p only if that arrives less than (p - q) * AGEING_S
    later, however many of those there are: nobody starves.
    """

    def key(self, request: EngineRequest) -> tuple[float, ...]:
        """Return when a request of priority 0 would have to arrive to have the same place."""
        return (request.arrival_time + request.priority * AGEING_S,)

    def finished(self, request: EngineRequest, num_output_tokens: int) -> None:
        """Nothing is learned."""


class ShortestJobFirst:
    """By predicted output tokens, fewer first, with ageing as in `PriorityWithAgeing`.

    A request is overtaken only by those that arrive less than (difference in tokens) * SHORTER_S later.
    """

    def __init__(self) -> None:
        self.predictor = LengthPredictor()

    def key(self, request: EngineRequest) -> tuple[float, ...]:
        """Return when a request for no tokens would have to arrive to have the same place."""
        return (request.arrival_time + _predicted_tokens(self.predictor, request) * SHORTER_S,)

    def finished(self, request: EngineRequest, num_output_tokens: int) -> None:
        """Learn the length."""
        _learn(self.predictor, request, num_output_tokens)


class _Share(NamedTuple):
    start_tag: float
    cost: float


class _Tenant:
    """`finish_tag`: the virtual time at which the tenant's share has paid for all that it has sent."""

    __slots__ = ("finish_tag", "is_listed", "num_open")

    def __init__(self) -> None:
        self.finish_tag = 0.0
        self.num_open = 0
        self.is_listed = False  # in FairShare's heap of idle ones


class FairShare:
    """Equal shares of the work for each tenant that has some: start-time fair queueing.

    Work is counted in tokens, prompt and answer. A request's start tag is where its tenant's last one ended in
    virtual time, or the current virtual time if that is later; its own end is one cost further. In order of start
    tags, a tenant that sends ten times as much only queues behind itself. Virtual time is the highest start tag that
    has been served, so who was idle starts where the others are now, and has saved nothing up. (It is known from
    requests that have ended, so it lags by what runs at the same time, never by more.) The cost is predicted; once it
    is known the tenant's account is corrected, which moves what it sends later. (Tags that were given stay as they are:
    the first requests after a start are shared out by a first guess of their lengths.)

    After Goyal, Vin and Cheng, Start-time Fair Queueing (1996).
    """

    def __init__(self) -> None:
        self.predictor = LengthPredictor()
        self._now = 0.0  # virtual time
        self._tenants: dict[str | None, _Tenant] = {}
        self._open: dict[str, _Share] = {}
        self._idle: list[tuple[float, int, str | None]] = []  # heap: finish tag, a unique number, tenant
        self._numbers = count()

    def key(self, request: EngineRequest) -> tuple[float, ...]:
        """Return the start tag, and charge the tenant for the request."""
        tenant = self._tenants.setdefault(request.tenant, _Tenant())
        start_tag = max(self._now, tenant.finish_tag)
        cost = len(request.prompt_token_ids) + _predicted_tokens(self.predictor, request)
        tenant.finish_tag = start_tag + cost
        tenant.num_open += 1
        self._open[request.id] = _Share(start_tag, cost)
        return (start_tag,)

    def finished(self, request: EngineRequest, num_output_tokens: int) -> None:
        """Charge the tenant for what the request took after all, and learn the length."""
        share, tenant = self._open.pop(request.id), self._tenants[request.tenant]
        tenant.num_open -= 1
        cost = len(request.prompt_token_ids) + num_output_tokens if num_output_tokens else 0
        tenant.finish_tag += cost - share.cost
        if num_output_tokens:  # else it was dropped before its turn, and does not say who is being served
            self._now = max(self._now, share.start_tag)
        _learn(self.predictor, request, num_output_tokens)
        if tenant.num_open == 0:
            self._list_as_idle(request.tenant, tenant)
        self._forget_idle()

    def _list_as_idle(self, name: str | None, tenant: _Tenant) -> None:
        if not tenant.is_listed:
            tenant.is_listed = True
            heapq.heappush(self._idle, (tenant.finish_tag, next(self._numbers), name))

    def _forget_idle(self) -> None:
        """Forget who is idle and has paid: a newcomer would get the same tags. With nothing open, that is everyone."""
        if not self._open:
            self._now = 0.0
            self._tenants.clear()
            self._idle.clear()
        while self._idle and self._idle[0][0] <= self._now:
            _, _, name = heapq.heappop(self._idle)
            tenant = self._tenants[name]
            tenant.is_listed = False
            if tenant.num_open == 0:
                if tenant.finish_tag <= self._now:
                    del self._tenants[name]
                else:
                    self._list_as_idle(name, tenant)


_POLICIES: dict[str, Callable[[], Policy]] = {
    "fcfs": Fcfs,
    "priority": PriorityWithAgeing,
    "sjf": ShortestJobFirst,
    "fair": FairShare,
}


def make_policy(name: str) -> Policy:
    """Return a new policy.

    Raises:
        ConfigurationError: there is none of that name (the nearest is named).
    """
    if name not in _POLICIES:
        raise ConfigurationError(
            f"Unknown scheduling policy {name!r}; it must be one of {', '.join(_POLICIES)}{nearest(name, _POLICIES)}.",
            param="scheduling_policy",
        )
    return _POLICIES[name]()


def _predicted_tokens(predictor: LengthPredictor, request: EngineRequest) -> float:
    """What all sequences of the request together will probably generate."""
    return predictor.predict(request) * request.params.num_sequences


def _learn(predictor: LengthPredictor, request: EngineRequest, num_output_tokens: int) -> None:
    """Learn from the mean of the sequences; a request that generated nothing says nothing."""
    if num_output_tokens:
        predictor.learn(request, max(1, num_output_tokens // request.params.num_sequences))
