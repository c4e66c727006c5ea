"""The memory of kept streams is shared: what an account has above its share is never at the cost of another."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from app.streaming.kept.live_stream import LiveStream
from app.streaming.kept.waiting_reader import WaitingReader
from tests.cases import examples
from tests.streaming.kept.live_engine import delta, finished
from tests.streaming.kept.live_kept import ROOM, Kept

ACCOUNTS = ("a", "b", "c")
ACTS = ("begin", "tell", "end", "leave", "come", "expire")


def test_an_account_has_half_of_the_memory_while_others_have_streams():
    kept = Kept(6 * ROOM)
    for number in range(6):
        kept.ended(f"a{number}", "a")
    assert kept.ended("b0", "b") is not None
    assert not kept.has("a0", "a")
    assert kept.ended("a6", "a") is not None
    assert sum(kept.has(f"a{number}", "a") for number in range(7)) == 3
    assert kept.has("b0", "b")


def test_what_grows_lets_go_of_nothing_that_another_account_has_within_its_share():
    kept = Kept(6 * ROOM)
    kept.ended("b", "b")
    kept.ended("a0", "a")
    assert all([kept.start("a1", "a"), kept.start("a2", "a")])
    for number in (1, 2):
        kept.engine.put(f"a{number}", delta(f"a{number}", 1, "x" * 3 * ROOM))
    assert kept.kept.num_bytes > 6 * ROOM
    assert kept.has("b", "b")
    assert not kept.has("a0", "a")


def test_an_account_that_reads_all_that_is_kept_keeps_no_other_from_its_share():
    kept = Kept(6 * ROOM)
    for number in range(6):
        kept.start(f"a{number}", "a")
        kept.engine.put(f"a{number}", finished(f"a{number}"))
    assert [kept.ended(f"b{number}", "b") is not None for number in range(3)] == [True] * 3
    assert [kept.has(f"b{number}", "b") for number in range(3)] == [True] * 3
    assert kept.start("a6", "a") is None
    assert kept.ended("b3", "b") is not None
    assert [kept.has(f"b{number}", "b") for number in range(4)] == [False, True, True, True]


def test_what_is_read_above_a_share_goes_when_its_last_reader_leaves():
    kept = Kept(6 * ROOM)
    read = [kept.start(f"a{number}", "a")[1] for number in range(6)]
    for number in range(6):
        kept.engine.put(f"a{number}", finished(f"a{number}"))
    for number in range(3):
        kept.ended(f"b{number}", "b")
    for reader in read:
        reader.close()
    assert [kept.has(f"a{number}", "a") for number in range(6)] == [False, False, False, True, True, True]
    assert kept.kept.num_bytes <= 6 * ROOM


def test_an_account_is_alone_again_when_the_others_have_no_streams():
    kept = Kept(6 * ROOM)
    kept.ended("b", "b")
    kept.kept.find("b", "b").cancel()
    kept.timers.fire()
    assert [kept.start(f"a{number}", "a") is not None for number in range(7)] == [True] * 6 + [False]


class Shared:
    """Kept streams of some accounts, each with the readers that it has; after each act the bounds are checked."""

    def __init__(self, max_bytes: int) -> None:
        self.kept, self.max_bytes = Kept(max_bytes), max_bytes
        self.streams: dict[str, tuple[LiveStream, list[WaitingReader]]] = {}  # as long as they are kept
        self.num_begun = 0

    def share(self) -> int:
        return self.max_bytes // 2 if len(self.bytes_of()) > 1 else self.max_bytes

    def bytes_of(self, *, only_busy: bool = False) -> Counter[str]:
        found: Counter[str] = Counter()
        for stream, readers in self.streams.values():
            if readers or not stream.is_over or not only_busy:
                found[stream.account] += stream.num_bytes
        return found

    def within_shares(self, num_bytes: Counter[str]) -> int:
        share = self.max_bytes // 2 if len(num_bytes) > 1 else self.max_bytes
        return sum(min(each, share) for each in num_bytes.values())

    def act(self, act: str, account: str, pick: int, size: int) -> None:
        before = self.bytes_of()
        own = [name for name, (stream, _) in self.streams.items() if stream.account == account]
        if act == "begin":
            self.begin(account)
        elif own:
            self.act_on(act, own[pick % len(own)], size)
        gone = [stream for stream, _ in self.streams.values() if stream.keeper is None]
        told = self.bytes_of()  # with what is gone: before room was made
        for stream in gone:
            assert stream.is_over
            assert not self.streams.pop(stream.id)[1]
            if stream.account != account:
                is_above = before[stream.account] > self.max_bytes // 2
                assert is_above or self.within_shares(told) > self.max_bytes
        self.check()

    def begin(self, account: str) -> None:
        self.num_begun += 1
        name = str(self.num_begun)
        busy = self.bytes_of(only_busy=True)
        is_alone = set(self.bytes_of()) <= {account}
        if (found := self.kept.start(name, account)) is not None:
            self.streams[name] = (found[0], [found[1]])
            assert self.kept.kept._accounts[account].num_bytes <= (self.max_bytes if is_alone else self.share())
        else:
            busy[account] += ROOM
            is_above = busy[account] > (self.max_bytes if is_alone else self.max_bytes // 2)
            assert is_above or self.within_shares(busy) > self.max_bytes

    def act_on(self, act: str, name: str, size: int) -> None:
        stream, readers = self.streams[name]
        if act == "tell" and not stream.is_over:
            self.kept.engine.put(name, delta(name, stream.num_tokens + 1, "x" * size))
        elif act == "end" and not stream.is_over:
            self.kept.engine.put(name, finished(name))
        elif act == "leave" and readers:
            readers.pop().close()
        elif act == "come" and len(readers) < 2:
            readers.append(WaitingReader(stream))
            readers[-1].open()
        elif act == "expire" and not readers:
            stream.cancel()
            if stream.keeper is not None:
                self.kept.kept.forget(stream)

    def check(self) -> None:
        kept, num_bytes = self.kept.kept, self.bytes_of()
        idle = [stream for stream, readers in self.streams.values() if stream.is_over and not readers]
        assert {*kept._idle} == {stream.id for stream in idle}
        assert {name: one.num_bytes for name, one in kept._accounts.items()} == num_bytes
        assert {*kept._large} == {name for name, each in num_bytes.items() if each > self.max_bytes // 2}
        assert (len(kept), kept.num_bytes) == (len(self.streams), num_bytes.total())
        if kept.num_bytes > self.max_bytes:
            assert not [stream for stream in idle if num_bytes[stream.account] > self.share()]
        if self.within_shares(num_bytes) > self.max_bytes:
            assert not idle


def acts(accounts: tuple[str, ...]) -> st.SearchStrategy[list[tuple[str, str, int, int]]]:
    one = st.tuples(
        st.sampled_from(ACTS), st.sampled_from(accounts), st.integers(0, 9), st.sampled_from([1, 200, 2 * ROOM])
    )
    return st.lists(one, max_size=40)


@settings(max_examples=examples(50), deadline=None)
@given(acts=acts(ACCOUNTS), max_bytes=st.sampled_from([0, ROOM, 4 * ROOM + 1, 8 * ROOM]))
def test_the_bounds_hold_whatever_accounts_do(acts: list[tuple[str, str, int, int]], max_bytes: int):
    shared = Shared(max_bytes)
    for act in acts:
        shared.act(*act)


@settings(max_examples=examples(50), deadline=None)
@given(acts=acts(("a",)), moments=st.lists(st.integers(0, 40), min_size=2, max_size=2))
def test_another_account_takes_nothing_of_a_half(acts: list[tuple[str, str, int, int]], moments: list[int]):
    shared = Shared(6 * ROOM)
    names: list[str] = []
    for number, act in enumerate([*acts, *[None] * (41 - len(acts))]):
        for _ in range(moments.count(number)):
            names.append(f"b{number}{len(names)}")
            stream = shared.kept.ended(names[-1], "b")
            assert stream is not None
            shared.streams[names[-1]] = (stream, [])
        if act is not None:
            shared.act(*act)
        assert all(shared.kept.has(name, "b") for name in names)


def test_making_room_costs_the_same_with_many_streams_of_others():
    kept = Kept(400 * ROOM)
    for number in range(200):
        kept.ended(f"b{number}", "b")
        kept.ended(f"a{number}", "a")
    looked: list[str] = []
    forget = kept.kept.forget
    kept.kept.forget = lambda stream: (looked.append(stream.id), forget(stream))
    assert kept.ended("large", "a") is not None
    assert all(name.startswith("a") for name in looked)
    assert len(looked) <= 1
