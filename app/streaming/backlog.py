"""What waits of one choice: deltas that came before their reader did, merged, and cut again where credit ends."""

from __future__ import annotations

from array import array
from bisect import bisect_right

from app.messages import TokenDelta, TokenLogprobs

# What a log-probability takes in memory, about: more than its token's text does.
LOGPROB_BYTES = 150


class Backlog:
    """Adjacent deltas of one choice on their way to one.

    A token takes 12 bytes and those of its text here; as a delta of its own it takes 250. A delta can be cut between
    its tokens; its text goes with the last of them, since no part of it is known to belong to an earlier one.
    """

    __slots__ = ("_ends", "_first", "_logprobs", "_text", "_text_ends", "_token_ids", "num_tokens")

    def __init__(self, delta: TokenDelta) -> None:
        self._first = delta
        self._token_ids = array("i", delta.token_ids)
        self._text = bytearray(delta.text, "utf-8")
        self._ends, self._text_ends = array("I", [len(delta.token_ids)]), array("I", [len(self._text)])
        self._logprobs: list[TokenLogprobs] | None = None if delta.logprobs is None else list(delta.logprobs)
        self.num_tokens = len(delta.token_ids)

    @property
    def first(self) -> int:
        """The number of the first token."""
        return self._first.first

    def append(self, delta: TokenDelta) -> None:
        """Add the choice's next delta."""
        self._token_ids.extend(delta.token_ids)
        self._text += delta.text.encode()
        self._ends.append(len(self._token_ids))
        self._text_ends.append(len(self._text))
        if delta.logprobs is not None:
            self._logprobs = self._logprobs or []
            self._logprobs += delta.logprobs
        self.num_tokens += len(delta.token_ids)

    def take(self, upto: int | None) -> TokenDelta | None:
        """Remove and return what may be told up to token number `upto` (None: all of it); None if that is nothing."""
        if upto is None or upto >= self._first.first + self.num_tokens - 1:
            self.num_tokens = 0
            logprobs = None if self._logprobs is None else tuple(self._logprobs)
            return self._first._replace(token_ids=tuple(self._token_ids), text=self._text.decode(), logprobs=logprobs)
        return self._take_some(max(0, upto - self._first.first + 1))

    def _take_some(self, limit: int) -> TokenDelta | None:
        """Take `limit` tokens, and the text of the deltas that end with them or before."""
        num_whole = bisect_right(self._ends, limit)
        text_end = self._text_ends[num_whole - 1] if num_whole else 0
        if not limit and not text_end:
            return None
        logprobs = None if self._logprobs is None else tuple(self._logprobs[:limit])
        taken = self._first._replace(
            token_ids=tuple(self._token_ids[:limit]), text=self._text[:text_end].decode(), logprobs=logprobs
        )
        self._first = self._first._replace(first=self._first.first + limit, token_ids=(), text="", logprobs=None)
        del self._token_ids[:limit], self._text[:text_end]
        self._ends = array("I", [end - limit for end in self._ends[num_whole:]])
        self._text_ends = array("I", [end - text_end for end in self._text_ends[num_whole:]])
        if self._logprobs is not None:
            del self._logprobs[:limit]
        self.num_tokens -= limit
        return taken


def delta_bytes(delta: TokenDelta) -> int:
    """Return about how much memory the text and the log-probabilities of a delta take."""
    num_bytes = len(delta.text) if delta.text.isascii() else len(delta.text.encode())
    if delta.logprobs is not None:
        num_bytes += LOGPROB_BYTES * sum(1 + len(entry.top) for entry in delta.logprobs)
    return num_bytes
