"""Checks of a stream by its client: each token must arrive once, in order and unchanged; the times are recorded."""

from __future__ import annotations

from dataclasses import dataclass, field

from benchmarks.streams.histogram import Histogram
from benchmarks.streams.script import TOKEN_CHARS, age_s, prefix_of, read_token, stamp_of


@dataclass(slots=True)
class Record:
    """The counts and times of a group's streams since the record began.

    `ages` are the seconds from a token's generation to its arrival, `gaps` those between two events of a stream.
    """

    num_events: int = 0
    num_tokens: int = 0
    num_bytes: int = 0
    ages: Histogram = field(default_factory=Histogram)
    gaps: Histogram = field(default_factory=Histogram)

    def to_json(self) -> dict[str, object]:
        """Return counts and histograms."""
        return {
            "events": self.num_events,
            "tokens": self.num_tokens,
            "bytes": self.num_bytes,
            "ages": self.ages.to_json(),
            "gaps": self.gaps.to_json(),
        }


class Recorder:
    """Holds the record that the checks of a group write into; `begin` starts a new one."""

    def __init__(self) -> None:
        self.record = Record()

    def begin(self) -> Record:
        """Begin a new record and return the one so far."""
        done, self.record = self.record, Record()
        return done


class StreamCheck:
    """One stream of scripted tokens.

    Attributes:
        number: of the last received token.
        lost, doubled, wrong: numbers of tokens that are missing, arrived again, or differ from the generated ones.
        is_done: whether the stream has ended properly.
        text: empty; a scripted stream is checked token by token.
    """

    __slots__ = (
        "_last_time",
        "_prefix",
        "_recorder",
        "doubled",
        "is_done",
        "lost",
        "number",
        "stream",
        "text",
        "wrong",
    )

    def __init__(self, stream: int, recorder: Recorder) -> None:
        self.stream = stream
        self.number = self.lost = self.doubled = self.wrong = 0
        self.is_done = False
        self.text = ""
        self._prefix = prefix_of(stream)
        self._recorder = recorder
        self._last_time = 0.0

    def take(self, text: str, now: float, first: int | None = None, count: int | None = None) -> None:
        """Check one event, with the text of one token or more; a protocol with numbers passes `first` and `count`."""
        record = self._recorder.record
        before, stamp_now = self.number, stamp_of(now)
        if first is not None and (first != before + 1 or count != len(text) / TOKEN_CHARS):
            self.wrong += 1
        if len(text) % TOKEN_CHARS:
            self.wrong += 1
        for position in range(0, len(text) - TOKEN_CHARS + 1, TOKEN_CHARS):
            token = read_token(text[position : position + TOKEN_CHARS])
            if token is None or token.prefix != self._prefix:
                self.wrong += 1
                continue
            if token.number <= self.number:
                self.doubled += 1
                continue
            self.lost += token.number - self.number - 1
            self.number = token.number
            record.num_tokens += 1
            record.ages.add(age_s(token.stamp, stamp_now))
        self._note_time(record, now)

    def count_bytes(self, count: int) -> None:
        """Count bytes of payload."""
        self._recorder.record.num_bytes += count

    def _note_time(self, record: Record, now: float) -> None:
        record.num_events += 1
        if self._last_time:
            record.gaps.add(now - self._last_time)
        self._last_time = now


class TextStreamCheck(StreamCheck):
    """One stream of a model: its text is kept, and compared with other streams of the same prompt later."""

    __slots__ = ()

    def take(self, text: str, now: float, first: int | None = None, count: int | None = None) -> None:
        """Check one event; without numbers it counts as one token."""
        if first is not None and first != self.number + 1:
            self.wrong += 1
        num_tokens = 1 if count is None else count
        self.text += text
        self.number += num_tokens
        record = self._recorder.record
        record.num_tokens += num_tokens
        self._note_time(record, now)
