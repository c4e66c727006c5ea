"""The live streams of one server, for readers that come back: whose they are, how many, how much and for how long.

A stream is kept from its beginning until nobody has read it for its `ttl_s`; one that still runs then is cancelled. One
that kept ones go on from, as the responses of a conversation do, stays as long as they do, whatever its own time.

Over the bound of memory ended streams go that nobody reads, and that none goes on from; what runs or is read never
does. The share of an account is all of the memory while it is alone, else half. What goes first is of an account above
its share. Above it an account's memory does not count against the others: what they have within theirs stays, and they
can begin more. Where no room can be made, a new stream is not kept: it is answered as if nobody had asked for more.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from app.contract.counts import Counts, counter, gauge
from app.contract.errors import StreamNotFound
from app.streaming.kept.idempotency_keys import IdempotencyKeys
from app.streaming.kept.live_stream import LiveStream, State

MAX_PER_ACCOUNT = 2048  # more than a conversation of responses has
FREED_BYTES = 4 * 2**20
"""So much is worth a trim of the heap, which takes milliseconds; less stays with the allocator."""
MAX_TTL_S = 3600
TRANSPORTS = ("http", "websocket")
NO_STREAM = "There is no such stream: its id is wrong, it is of another API key, or it is not kept any longer."


class Timer(Protocol):
    """A call that is due later."""

    def cancel(self) -> None:
        """Do not call."""


CallLater = Callable[[float, Callable[[], None]], Timer]
"""Calls a function after some seconds."""


Idle = OrderedDict[str, LiveStream]
"""Ended streams that nobody reads by their ids, the oldest first: a plain dict seeks it behind all that have gone."""


@dataclass(slots=True)
class KeptCounts(Counts):
    """The number of kept answers, and how often readers came back."""

    kept: Mapping[str, float] = gauge(
        "quire_streams_kept",
        "Resumable answers that are kept, by state: running, finished, cancelled or failed.",
        by=("state",),
        start=dict.fromkeys(map(str, State), 0),
    )
    resumed: Mapping[str, float] = counter(
        "quire_streams_resumed",
        "Readers that came to a resumable answer after its first one, by transport.",
        by=("transport",),
        start=dict.fromkeys(TRANSPORTS, 0),
    )


@dataclass(slots=True)
class _Account:
    """The streams of one account: their number, their memory, and the ended ones that nobody reads (idle)."""

    count: int = 0
    num_bytes: int = 0
    idle: Idle = field(default_factory=OrderedDict)


class KeptStreams:
    """Streams by their ids; `on_freed` is called when a few megabytes of them have been let go. Loop only.

    Attributes:
        num_bytes: the memory of all of them.
        keys: the idempotency keys, whose answers are among the streams.
    """

    def __init__(
        self, max_bytes: int, call_later: CallLater | None = None, *, on_freed: Callable[[], None] | None = None
    ) -> None:
        self.num_bytes = 0
        self._resumed: dict[str, float] = dict.fromkeys(TRANSPORTS, 0)
        self.keys = IdempotencyKeys()
        self._max_bytes = max_bytes
        self._half = max_bytes // 2
        self._call_later = call_later or _call_later
        # By key and id: to look up a stream of another key is to look up none, with the same work.
        self._streams: dict[tuple[str | None, str], LiveStream] = {}
        self._accounts: dict[str, _Account] = {}
        self._large: dict[str, _Account] = {}  # those with more than half of the memory: hardly more than two
        self._on_freed = on_freed
        self._freed_bytes = 0  # since it was last called
        self._timers: dict[str, Timer] = {}  # of the streams that nobody reads, but for those whose time is over
        self._previous: dict[str, str] = {}  # by the id of a stream, that of the one that it goes on from
        self._num_next = Counter[str]()  # by the id of a stream, how many go on from it
        self._idle: Idle = OrderedDict()  # of all accounts

    def __len__(self) -> int:
        return len(self._streams)

    @property
    def counts(self) -> KeptCounts:
        """The counts that the metrics show."""
        states = Counter(stream.state for stream in self._streams.values())
        return KeptCounts({str(state): states[state] for state in State}, self._resumed)

    def keep(self, stream: LiveStream, goes_on_from: str | None = None) -> bool:
        """Keep a new stream if there is room for it; return whether it is kept.

        What it goes on from is kept as long, if it is now. That is one step, however many are before that one.
        """
        num_bytes = stream.num_bytes
        if goes_on_from is not None and (previous := self._streams.get((stream.tenant, goes_on_from))) is not None:
            self._previous[stream.id] = goes_on_from
            self._num_next[goes_on_from] += 1
            self._drop_idle(previous)
        account = self._accounts.setdefault(stream.account, _Account())
        account.count += 1
        self._count(stream.account, num_bytes)
        if not (self._make_own_room(account) and self._make_room()):
            self._discount(stream.account, num_bytes)
            self._let_previous_go(stream)
            return False
        self._streams[stream.tenant, stream.id] = stream
        stream.keeper = self
        self.settle(stream)
        return True

    def find(self, stream_id: str, tenant: str | None) -> LiveStream:
        """Return the stream of an id for the key of that name; unknown and foreign ones are told alike.

        Raises:
            StreamNotFound: there is none, or it is of another key.
        """
        stream = self._streams.get((tenant, stream_id))
        if stream is None:
            raise StreamNotFound(NO_STREAM)
        return stream

    def grow(self, stream: LiveStream, num_bytes: int) -> None:
        """Count what was told in a stream, and let ended ones go if there is too much."""
        self._count(stream.account, num_bytes)
        if self.num_bytes > self._max_bytes:
            self._make_room()

    def note_return(self, transport: str) -> None:
        """Count a reader that has come after the first one."""
        self._resumed[transport] += 1

    def settle(self, stream: LiveStream) -> None:
        """Note that a stream has ended, or that a reader has come or gone; it may be let go if there is too much."""
        if stream.readers:
            self._drop_idle(stream)
            self._stop_timer(stream)
            return
        if stream.id not in self._timers:
            self._start_timer(stream, stream.ttl_s)
        if stream.is_over and not self._num_next[stream.id]:
            self._add_idle(stream)
            self._make_room()

    def touch(self, stream: LiveStream) -> None:
        """Keep a stream as if a reader had just left it."""
        if stream.keeper is self and not stream.readers:
            self._drop_idle(stream)
            self._stop_timer(stream)
            self.settle(stream)

    def _expire(self, stream: LiveStream) -> None:
        stream.cancel()
        if stream.keeper is None:  # it may have been let go when it ended
            return
        if self._num_next[stream.id]:
            del self._timers[stream.id]  # it goes with the last one that goes on from it
        else:
            self._forget(stream, is_oldest=True)

    def forget(self, stream: LiveStream) -> None:
        """Keep a stream no longer; those who read it may read on."""
        self._forget(stream, is_oldest=False)

    def _forget(self, stream: LiveStream, *, is_oldest: bool) -> None:
        del self._streams[stream.tenant, stream.id]
        stream.keeper = None
        if stream.recorder is not None:
            stream.recorder.forget(stream)
        self.keys.forget(stream)
        self._drop_idle(stream)
        self._stop_timer(stream)
        self._let_previous_go(stream, is_oldest=is_oldest)
        num_bytes = stream.num_bytes
        self._discount(stream.account, num_bytes)
        self._freed_bytes += num_bytes
        if self._freed_bytes >= FREED_BYTES and self._on_freed is not None:
            self._freed_bytes = 0
            self._on_freed()

    def _let_previous_go(self, stream: LiveStream, *, is_oldest: bool = False) -> None:
        """Note that a stream goes on from another no longer, which is the oldest one if `stream` was."""
        previous_id = self._previous.pop(stream.id, None)
        if previous_id is None:
            return
        self._num_next[previous_id] -= 1
        if self._num_next[previous_id]:
            return
        del self._num_next[previous_id]
        previous = self._streams.get((stream.tenant, previous_id))
        if previous is not None and not previous.readers:
            if previous_id not in self._timers:
                self._start_timer(previous, 0)  # one call for each, not all of a long conversation in one
            self._add_idle(previous, is_oldest=is_oldest)

    def _start_timer(self, stream: LiveStream, seconds: float) -> None:
        self._timers[stream.id] = self._call_later(seconds, lambda: self._expire(stream))

    def _stop_timer(self, stream: LiveStream) -> None:
        if timer := self._timers.pop(stream.id, None):
            timer.cancel()

    def _add_idle(self, stream: LiveStream, *, is_oldest: bool = False) -> None:
        for idle in (self._idle, self._accounts[stream.account].idle):
            idle[stream.id] = stream
            if is_oldest:
                idle.move_to_end(stream.id, last=False)

    def _drop_idle(self, stream: LiveStream) -> None:
        self._idle.pop(stream.id, None)
        self._accounts[stream.account].idle.pop(stream.id, None)

    def _count(self, name: str, num_bytes: int) -> None:
        account = self._accounts[name]
        account.num_bytes += num_bytes
        self.num_bytes += num_bytes
        if account.num_bytes > self._half:
            self._large[name] = account
        else:
            self._large.pop(name, None)

    def _discount(self, name: str, num_bytes: int) -> None:
        self._count(name, -num_bytes)
        account = self._accounts[name]
        account.count -= 1
        if not account.count:
            del self._accounts[name]

    # --- Room ----------------------------------------------------------------------------------------------------

    @property
    def _share(self) -> int:
        """The memory that an account may have."""
        return self._half if len(self._accounts) > 1 else self._max_bytes

    @property
    def _num_within_shares(self) -> int:
        """The memory of all accounts, without what some have above their shares."""
        return self.num_bytes - sum(max(0, account.num_bytes - self._share) for account in self._large.values())

    def _make_own_room(self, account: _Account) -> bool:
        """Forget idle streams of an account until it is within its bounds; return whether it is."""
        while account.count > MAX_PER_ACCOUNT or account.num_bytes > self._share:
            if not account.idle:
                return False
            self._forget_oldest(account.idle)
        return True

    def _make_room(self) -> bool:
        """Forget idle streams until there is not too much; return whether others may have what they have."""
        while self.num_bytes > self._max_bytes and (idle := self._idle_above_share()):
            self._forget_oldest(idle)
        while self._num_within_shares > self._max_bytes and self._idle:
            self._forget_oldest(self._idle)
        return self._num_within_shares <= self._max_bytes

    def _idle_above_share(self) -> Idle | None:
        """Return the idle streams of an account that has some, and more than its share; None if there is none."""
        return next((one.idle for one in self._large.values() if one.idle and one.num_bytes > self._share), None)

    def _forget_oldest(self, idle: Idle) -> None:
        self._forget(next(iter(idle.values())), is_oldest=True)


def _call_later(seconds: float, function: Callable[[], None]) -> Timer:
    return asyncio.get_running_loop().call_later(seconds, function)
