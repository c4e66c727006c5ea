"""Scheduling policies: in which order requests are scheduled.

A policy gives each request a sort key once, when the request is added; the smallest comes first, and the caller breaks
ties by order of arrival. Groups start and resume from the front of that order, victims are taken from its end. A key
never changes, so the queues stay sorted; ageing and fairness are in how keys are computed.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import itemgetter
from typing import NamedTuple

from app.config.nearest import nearest
from app.contract.errors import ConfigurationError
from app.contract.requests import EngineRequest
from app.engine.schedule.length_predictor import LengthPredictor

# One level of `priority` outweighs this much waiting.
AGEING_S = 10.0
# One more predicted token of an answer outweighs this much waiting: about what a token takes.
SHORTER_S = 0.05
# Accounts without open requests that are remembered at most, for the cost of their last ones.
MAX_IDLE = 1024


class Policy:
    """First come, first served; the base of the other policies. Engine thread only; pure.

    With `is_by_account` seats are shared among accounts too (see `shares`). `predictor` predicts the lengths of
    answers, where the policy needs that.
    """

    is_by_account = False
    predictor: LengthPredictor | None = None

    def key(self, request: EngineRequest) -> tuple[float, ...]:
        """Return the sort key of a request that is being added; called once for each."""
        return (request.arrival_time,)

    def finished(self, request: EngineRequest, num_output_tokens: int, num_prompt_tokens: int = 0) -> None:
        """Note that a request has ended, for any reason; called once for each.

        `num_output_tokens` counts the tokens that all its sequences generated; 0 if there are none. Then
        `num_prompt_tokens` is how many tokens of its prompt were computed.
        """


class PriorityWithAgeing(Policy):
    """By `priority`, lower first, with linear ageing.

    At time t a request's rank is priority - (t - arrival_time) / AGEING_S, the lowest first. Between two requests t
    cancels out: their order never changes and is that of arrival_time + priority * AGEING_S. So a request of priority p
    is overtaken by one of priority q < p only if the latter arrives less than (p - q) * AGEING_S later, however many
    of those there are: no request starves.
    """

    def key(self, request: EngineRequest) -> tuple[float, ...]:
        """Return when a request of priority 0 would have to arrive to have the same rank."""
        return (request.arrival_time + request.priority * AGEING_S,)


class ShortestJobFirst(Policy):
    """By predicted output tokens, fewer first, with ageing as in `PriorityWithAgeing`.

    A request is overtaken only by those that arrive less than (difference in tokens) * SHORTER_S later.
    """

    def __init__(self) -> None:
        self.predictor: LengthPredictor = LengthPredictor()

    def key(self, request: EngineRequest) -> tuple[float, ...]:
        """Return when a request for no tokens would have to arrive to have the same rank."""
        return (request.arrival_time + self.predictor.predict(request) * SHORTER_S,)

    def finished(self, request: EngineRequest, num_output_tokens: int, num_prompt_tokens: int = 0) -> None:
        """Learn the length."""
        self.predictor.learn(request, num_output_tokens)


class _Share(NamedTuple):
    start_tag: float
    cost: float


@dataclass(slots=True)
class _Account:
    """The virtual time at which the account's requests are paid for, and its open requests, the newest last."""

    finish_tag: float = 0.0
    open: dict[str, _Share] = field(default_factory=dict)


class FairShare(Policy):
    """Equal shares of the work for each account that has requests: start-time fair queueing.

    Work is counted in tokens, prompt and answer. A request's start tag is its account's finish tag, or the current
    virtual time if that is later; the cost of the request then moves the finish tag. In order of start tags, an account
    that sends ten times as much only delays itself, and its own requests keep the order in which they were added.
    Virtual time is the highest start tag that has been served, so an idle account starts where the others are now and
    saves nothing up. (Virtual time is known from requests that have ended, so it lags by at most the requests that run
    at the same time.) The cost is predicted; once the cost is known the finish tag is corrected, which moves later
    requests. (Start tags never change: the first requests after a server start are ordered by rough predictions.)

    An account without open requests is forgotten once virtual time has reached its finish tag. At most `MAX_IDLE` such
    accounts are kept: with one more, virtual time moves on to the lowest of their finish tags.

    After Goyal, Vin and Cheng, Start-time Fair Queueing (1996).
    """

    is_by_account = True

    def __init__(self) -> None:
        self.predictor: LengthPredictor = LengthPredictor()
        self._now = 0.0  # virtual time
        self._accounts: dict[str, _Account] = {}
        self._idle: list[tuple[float, str]] = []  # finish tags and names of those with nothing open, in order

    def key(self, request: EngineRequest) -> tuple[float, ...]:
        """Return the start tag, and charge the account for the request."""
        name = request.account
        account = self._accounts.get(name)
        if account is None:
            account = self._accounts[name] = _Account()
        elif not account.open:
            del self._idle[bisect_left(self._idle, (account.finish_tag, name))]
        cost = len(request.prompt_token_ids) + self.predictor.predict(request)
        start_tag = max(self._now, account.finish_tag)
        account.finish_tag = start_tag + cost
        if account.open:  # after a correction a request may not overtake earlier ones of its account
            start_tag = max(start_tag, next(reversed(account.open.values())).start_tag)
        account.open[request.id] = _Share(start_tag, cost)
        return (start_tag,)

    def finished(self, request: EngineRequest, num_output_tokens: int, num_prompt_tokens: int = 0) -> None:
        """Correct the account's charge to the actual cost of the request, and learn the length."""
        account = self._accounts[request.account]
        share = account.open.pop(request.id)
        cost = len(request.prompt_token_ids) + num_output_tokens if num_output_tokens else num_prompt_tokens
        account.finish_tag += cost - share.cost
        if cost:  # else the request was never served, and its tag says nothing about virtual time
            self._now = max(self._now, share.start_tag)
        self.predictor.learn(request, num_output_tokens)
        if not account.open:
            insort(self._idle, (account.finish_tag, request.account))
            self._forget_idle()

    def _forget_idle(self) -> None:
        if len(self._idle) == len(self._accounts):  # no account has open requests
            self._now = 0.0
            self._accounts.clear()
            self._idle.clear()
            return
        num_over = len(self._idle) - MAX_IDLE
        if num_over > 0:
            self._now = max(self._now, self._idle[num_over - 1][0])
        num_behind = bisect_right(self._idle, self._now, key=itemgetter(0))
        for _, name in self._idle[:num_behind]:
            del self._accounts[name]
        del self._idle[:num_behind]


_POLICIES: dict[str, Callable[[], Policy]] = {
    "fcfs": Policy,
    "priority": PriorityWithAgeing,
    "sjf": ShortestJobFirst,
    "fair": FairShare,
}


def make_policy(name: str) -> Policy:
    """Return a new policy.

    Raises:
        ConfigurationError: the name is unknown (the message has the nearest one).
    """
    if name not in _POLICIES:
        raise ConfigurationError(
            f"Unknown scheduling policy {name!r}; it must be one of {', '.join(_POLICIES)}{nearest(name, _POLICIES)}.",
            param="scheduling_policy",
        )
    return _POLICIES[name]()
