"""Scheduling policies: who comes first.

A policy gives each request a sort key once, when it is added; smaller comes first, and the caller breaks ties by
order of arrival. Starting and resuming go from the front of that order, victims are taken from its end. A key never
changes, so the queues stay sorted by themselves; ageing and fairness are in how keys are made.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import itemgetter
from typing import NamedTuple, Protocol

from app.config.settings import nearest
from app.contract.errors import ConfigurationError
from app.contract.requests import EngineRequest
from app.engine.schedule.length_predictor import LengthPredictor

# One level of `priority` outweighs this much waiting.
AGEING_S = 10.0
# A token that an answer is predicted to be longer outweighs this much waiting: about what a token takes.
SHORTER_S = 0.05
# Accounts without open requests that are remembered at most, for what their last ones took.
MAX_IDLE = 1024


class Policy(Protocol):
    """Who comes first. Engine thread only; pure.

    With `is_by_account` seats are shared among accounts too (see `shares`).
    """

    is_by_account: bool

    @property
    def predictor(self) -> LengthPredictor | None:
        """What guesses the lengths of answers, where the policy needs that."""

    def key(self, request: EngineRequest) -> tuple[float, ...]:
        """Return the sort key of a request that is being added; called once for each."""

    def finished(self, request: EngineRequest, num_output_tokens: int, num_prompt_tokens: int = 0) -> None:
        """Take in that a request has ended, however it did; called once for each.

        `num_output_tokens` counts what its sequences generated, all together; 0 if it never came so far. Then
        `num_prompt_tokens` says how many of its prompt were computed.
        """


class Fcfs:
    """First come, first served."""

    is_by_account = False
    predictor: LengthPredictor | None = None

    def key(self, request: EngineRequest) -> tuple[float, ...]:
        """Return when the request arrived."""
        return (request.arrival_time,)

    def finished(self, request: EngineRequest, num_output_tokens: int, num_prompt_tokens: int = 0) -> None:
        """Nothing is learned."""


class PriorityWithAgeing:
    """By `priority`, lower first, but whoever waits comes nearer.

    Linear ageing: at time t a request's rank is priority - (t - arrival_time) / AGEING_S, the lowest first. Between
    two requests t cancels out: their order never changes and is that of arrival_time + priority * AGEING_S. So a
    request of priority p is overtaken by one of priority q < p only if that arrives less than (p - q) * AGEING_S
    later, however many of those there are: nobody starves.
    """

    is_by_account = False
    predictor: LengthPredictor | None = None

    def key(self, request: EngineRequest) -> tuple[float, ...]:
        """Return when a request of priority 0 would have to arrive to have the same place."""
        return (request.arrival_time + request.priority * AGEING_S,)

    def finished(self, request: EngineRequest, num_output_tokens: int, num_prompt_tokens: int = 0) -> None:
        """Nothing is learned."""


class ShortestJobFirst:
    """By predicted output tokens, fewer first, with ageing as in `PriorityWithAgeing`.

    A request is overtaken only by those that arrive less than (difference in tokens) * SHORTER_S later.
    """

    is_by_account = False

    def __init__(self) -> None:
        self.predictor = LengthPredictor()

    def key(self, request: EngineRequest) -> tuple[float, ...]:
        """Return when a request for no tokens would have to arrive to have the same place."""
        return (request.arrival_time + _predicted_tokens(self.predictor, request) * SHORTER_S,)

    def finished(self, request: EngineRequest, num_output_tokens: int, num_prompt_tokens: int = 0) -> None:
        """Learn the length."""
        _learn(self.predictor, request, num_output_tokens)


class _Share(NamedTuple):
    start_tag: float
    cost: float


@dataclass(slots=True)
class _Account:
    """Up to which virtual time its share pays for all it has sent, and what is open of that, the newest last."""

    finish_tag: float = 0.0
    open: dict[str, _Share] = field(default_factory=dict)


class FairShare:
    """Equal shares of the work for each account that has some: start-time fair queueing.

    Work is counted in tokens, prompt and answer. A request's start tag is where its account's last one ended in
    virtual time, or the current virtual time if that is later; its own end is one cost further. In order of start
    tags, an account that sends ten times as much only queues behind itself, and its own requests stand in the order
    in which they were added. Virtual time is the highest start tag that has been served, so who was idle starts where
    the others are now, and has saved nothing up. (It is known from requests that have ended, so it lags by what runs
    at the same time, never by more.) The cost is predicted; once it is known the account is corrected, which moves
    what it sends later. (Tags that were given stay as they are: the first requests after a start are shared out by a
    first guess of their lengths.)

    An account with nothing open is forgotten once virtual time has reached its end. At most `MAX_IDLE` wait for that:
    one more, and virtual time moves on to the nearest of those ends.

    After Goyal, Vin and Cheng, Start-time Fair Queueing (1996).
    """

    is_by_account = True

    def __init__(self) -> None:
        self.predictor = LengthPredictor()
        self._now = 0.0  # virtual time
        self._accounts: dict[str, _Account] = {}
        self._idle: list[tuple[float, str]] = []  # finish tags and names of those with nothing open, in order

    @property
    def num_accounts(self) -> int:
        """How many accounts are remembered."""
        return len(self._accounts)

    def key(self, request: EngineRequest) -> tuple[float, ...]:
        """Return the start tag, and charge the account for the request."""
        name = request.account
        account = self._accounts.get(name)
        if account is None:
            account = self._accounts[name] = _Account()
        elif not account.open:
            del self._idle[bisect_left(self._idle, (account.finish_tag, name))]
        cost = len(request.prompt_token_ids) + _predicted_tokens(self.predictor, request)
        start_tag = max(self._now, account.finish_tag)
        account.finish_tag = start_tag + cost
        if account.open:  # a correction lets nobody overtake what was sent before
            start_tag = max(start_tag, next(reversed(account.open.values())).start_tag)
        account.open[request.id] = _Share(start_tag, cost)
        return (start_tag,)

    def finished(self, request: EngineRequest, num_output_tokens: int, num_prompt_tokens: int = 0) -> None:
        """Charge the account for what the request took after all, and learn the length."""
        account = self._accounts[request.account]
        share = account.open.pop(request.id)
        cost = len(request.prompt_token_ids) + num_output_tokens if num_output_tokens else num_prompt_tokens
        account.finish_tag += cost - share.cost
        if cost:  # else it was dropped before its turn, and does not say who is being served
            self._now = max(self._now, share.start_tag)
        _learn(self.predictor, request, num_output_tokens)
        if not account.open:
            insort(self._idle, (account.finish_tag, request.account))
            self._forget_idle()

    def _forget_idle(self) -> None:
        if len(self._idle) == len(self._accounts):  # nobody is behind anybody
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
