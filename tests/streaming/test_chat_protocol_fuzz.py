"""No frame of a client raises, and every stream has one end and no gaps in any order of events."""

import json

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from app.contract.errors import ErrorInfo
from app.contract.events import EngineEvent
from app.streaming.chat_actions import Cancel, Close, Detach, GrantCredit, Resume, Send
from app.streaming.chat_frames import Accepted
from app.streaming.chat_table import State
from tests.cases import examples
from tests.fakes import FakeClock
from tests.streaming.frames import TIMINGS, USAGE, delta, feed, finished, greeted, make_protocol, start

KINDS = st.sampled_from(["hello", "start", "resume", "detach", "cancel", "ping", "pong", "credit", "t"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
NUMBERS = st.lists(st.integers(-2, 300), max_size=3)
FRAMES = st.fixed_dictionaries(
    {"t": KINDS | JSON},
    optional={
        "id": st.sampled_from(["a", "b", "x" * 65]) | JSON,
        "request": JSON,
        "credit": JSON,
        "upto": NUMBERS | JSON,
        "stream": st.just("s") | JSON,
        "after": NUMBERS | JSON,
        "ttl_s": st.sampled_from([0, 300, 3601, -1]) | JSON,
        "idempotency_key": st.just("key") | JSON,
        "ts": JSON,
        "key": JSON,
        "protocol": JSON,
    },
)


@given(st.lists(st.text(max_size=20) | FRAMES.map(json.dumps) | JSON.map(json.dumps), max_size=30), st.booleans())
def test_no_frame_of_a_client_raises(texts: list[str], is_greeted: bool):
    protocol = greeted() if is_greeted else make_protocol()
    for text in texts:
        was_closed = protocol.state is State.CLOSED
        actions = protocol.receive(text)
        assert not (was_closed and actions)
        assert all(json.loads(action.frame) for action in actions if isinstance(action, Send))
        assert [type(action) for action in actions].count(Close) == (protocol.state is State.CLOSED and not was_closed)


@given(st.data())
def test_a_truncated_frame_closes_the_connection(data: st.DataObject):
    text = json.dumps(data.draw(FRAMES))
    for cut in range(len(text)):
        assert greeted().receive(text[:cut])[0].code == 4400


CHOICES = range(3)


class StreamMachine(RuleBasedStateMachine):
    """Streams are started, resumed, left, cancelled and ended in any order; each has one end at most, and no gaps.

    `open` holds the number of the last token of every open choice of each stream, and `texts` the text that a reader
    has received, by id and choice.
    """

    ids = st.sampled_from("abc")

    def __init__(self):
        super().__init__()
        self.clock = FakeClock()
        self.protocol = greeted(clock=self.clock)
        self.open: dict[str, dict[int, int]] = {}
        self.texts: dict[str, dict[int, str]] = {}
        self.accepted: set[str] = set()
        self.paused: set[str] = set()

    @rule(client_id=ids)
    def start(self, client_id: str):
        if client_id not in self.open:
            start(self.protocol, client_id)
            self.open[client_id] = dict.fromkeys(CHOICES, 0)
            self.texts[client_id] = dict.fromkeys(CHOICES, "")

    @rule(client_id=ids, after=st.lists(st.integers(0, 400), min_size=3, max_size=3))
    def resume(self, client_id: str, after: list[int]):
        if client_id not in self.open:
            frame = {"t": "resume", "id": client_id, "stream": "s", "after": after, "credit": 7}
            assert feed(self.protocol, frame) == [Resume(client_id, "s", tuple(after), 7)]
            self.open[client_id] = dict(enumerate(after))
            self.texts[client_id] = dict.fromkeys(CHOICES, "")

    @rule(client_id=ids)
    def detach(self, client_id: str):
        expected = [Detach(client_id)] if client_id in self.open else []
        assert feed(self.protocol, {"t": "detach", "id": client_id}) == expected
        self.open.pop(client_id, None)
        self._forget(client_id)

    @rule(client_id=ids)
    def cancel(self, client_id: str):
        expected = [Cancel(client_id)] if client_id in self.open else []
        assert feed(self.protocol, {"t": "cancel", "id": client_id}) == expected

    @rule(client_id=ids, upto=st.lists(st.integers(0, 400), min_size=3, max_size=3))
    def credit(self, client_id: str, upto: list[int]):
        expected = [GrantCredit(client_id, tuple(upto))] if client_id in self.open else []
        assert feed(self.protocol, {"t": "credit", "id": client_id, "upto": upto}) == expected

    @precondition(lambda self: self.accepted)
    @rule(data=st.data(), is_paused=st.booleans())
    def pause(self, data: st.DataObject, is_paused: bool):
        client_id = data.draw(st.sampled_from(sorted(self.accepted)))
        frame = (self.protocol.pause if is_paused else self.protocol.resume)(client_id)
        assert (frame is not None) == (is_paused != (client_id in self.paused))
        (self.paused.add if is_paused else self.paused.discard)(client_id)

    @precondition(lambda self: set(self.open) - self.accepted)
    @rule(data=st.data())
    def accept(self, data: st.DataObject):
        client_id = data.draw(st.sampled_from(sorted(set(self.open) - self.accepted)))
        after = [self.open[client_id][choice] for choice in CHOICES]
        accepted = json.loads(self.protocol.accept(client_id, Accepted("s", "guide", after, last_numbers=after)))
        assert (accepted["after"], accepted["n"]) == (after, len(CHOICES))
        self.accepted.add(client_id)

    @precondition(lambda self: self.accepted)
    @rule(data=st.data(), pieces=st.lists(st.tuples(st.sampled_from(CHOICES), st.text(max_size=3), st.booleans())))
    def send(self, data: st.DataObject, pieces: list[tuple[int, str, bool]]):
        client_id = data.draw(st.sampled_from(sorted(self.accepted)))
        numbers, texts = self.open[client_id], self.texts[client_id]
        events: list[EngineEvent] = []
        expected_texts, firsts, ended = dict(texts), [], []
        for choice, text, ends in pieces:
            if choice not in numbers:
                continue
            count = len(text) + 1
            events.append(delta(numbers[choice] + 1, count, text, choice))
            firsts.append((choice, numbers[choice] + 1))
            numbers[choice] += count
            expected_texts[choice] += text
            if ends:
                events.append(finished(choice=choice))
                ended.append((choice, numbers.pop(choice)))
        frames = [json.loads(self.protocol.send(client_id, event)) for event in events]
        for frame in frames:
            if frame["t"] == "delta":
                texts[frame["i"]] += frame["x"]
        assert texts == expected_texts
        assert [(frame["i"], frame["n"]) for frame in frames if frame["t"] == "delta"] == firsts
        assert [(frame["i"], frame["n"]) for frame in frames if frame["t"] == "finish"] == ended
        if not numbers:
            del self.open[client_id]
            self._forget(client_id)
            assert json.loads(self.protocol.finish(client_id, USAGE, TIMINGS))["id"] == client_id

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def fail(self, data: st.DataObject):
        client_id = data.draw(st.sampled_from(sorted(self.open)))
        assert json.loads(self.protocol.fail(client_id, ErrorInfo("engine_error", "")))["id"] == client_id
        del self.open[client_id]
        self._forget(client_id)

    def _forget(self, client_id: str):
        self.accepted.discard(client_id)
        self.paused.discard(client_id)

    @rule()
    def time_passes(self):
        self.clock.advance(10)

    @invariant()
    def the_protocol_has_exactly_the_open_streams(self):
        assert set(self.protocol._streams) == set(self.open)
        assert self.accepted == {
            client_id
            for client_id, stream in self.protocol._streams.items()
            if stream.state in (State.STREAMING, State.PAUSED)
        }


StreamMachine.TestCase.settings = settings(max_examples=examples(100), stateful_step_count=30)
TestStreamMachine = StreamMachine.TestCase
