"""One choice of a request: from its sampled tokens to deltas of text, until it ends.

What a choice's deltas hold:
- Every generated token but the one that ends the choice (EOS, stop id) and those that lie wholly inside a stop string.
  A token that a stop string begins in is the last one, its text cut where the stop string begins.
- The log-probabilities of every generated token, of those that are not sent too: clients count them.
- Nothing ends the choice before `min_tokens`: stop strings are searched for in the text of the tokens behind them.
- The token at which the rule of repetition.py holds first ends the choice, and is its last one.
- A token is sent with its text as soon as none of that text can be part of a stop string; until then the token is held
  back. A token that adds no text (the start of a character, a special token) does not wait, except behind one that
  does.
- A character that the answer leaves incomplete is not in its text: its bytes are in the tokens and log-probabilities
  alone. An answer to all these tokens begins with the whole character, as if it had never been cut.
- A choice that goes on behind tokens that an earlier process has told sends them not again: what it would send of them
  is dropped, since a stop string can hold one back here that was told there when the next one came.
- The numbers of a choice's tokens have no gaps. Only the last delta can be without tokens: it has text that was held
  back, or the log-probabilities of the token that ended the choice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from app.contract.errors import EngineFailed
from app.contract.events import (
    REPETITION,
    ChoiceEnd,
    EngineEvent,
    Finished,
    FinishReason,
    StopReason,
    Timings,
    TokenDelta,
    Usage,
)
from app.contract.packed_logprobs import Logprobs, pack_row
from app.engine.repetition import Repetition
from app.engine.schedule.group import SequenceGroup
from app.engine.schedule.step_plan import Sample
from app.text.tokens.detokenizer import complete_rest
from app.text.tokens.stop import StopMatcher
from app.text.tokens.tokenizer import Tokenizer

_NO_IDS: frozenset[int] = frozenset()


class _Token(NamedTuple):
    """A generated token, where its text begins in the text of the choice, and its row of log-probabilities."""

    token_id: int
    start: int
    text: str
    row: bytes | None


class Choice:
    """The output for one choice of a request: the next delta, the tokens held back, and why it ended.

    Engine thread only.
    """

    __slots__ = (
        "_detokenizer",
        "_end_ids",
        "_eos_ids",
        "_first_token_time",
        "_group",
        "_held",
        "_matcher",
        "_max_tokens",
        "_min_tokens",
        "_num_chars",
        "_num_generated",
        "_num_logprobs",
        "_num_released",
        "_num_sent",
        "_num_told",
        "_repetition",
        "_request_id",
        "_rows",
        "_text",
        "_token_ids",
        "choice",
        "ended",
        "is_touched",
    )

    def __init__(self, group: SequenceGroup, choice: int, tokenizer: Tokenizer, eos_token_ids: frozenset[int]) -> None:
        params = group.request.params
        assert params.max_tokens is not None, "admission sets max_tokens"
        self.choice = choice
        self.ended: ChoiceEnd | None = None
        self.is_touched = False  # has samples that were not reported; set by the output processor
        self._group = group
        self._request_id = group.request.id
        self._detokenizer = tokenizer.new_detokenizer(group.request.shown_token_ids, group.request.prompt_token_ids)
        self._matcher = StopMatcher(params.stop_strings) if params.stop_strings else None
        self._repetition = Repetition(params.min_tokens) if params.repetition_stop else None
        self._end_ids = self._eos_ids = _NO_IDS if params.ignore_eos else eos_token_ids
        if params.stop_token_ids:
            self._end_ids = self._end_ids.union(params.stop_token_ids)
        self._min_tokens = params.min_tokens
        self._max_tokens = params.max_tokens
        self._num_logprobs = params.logprobs  # for each token; fewer where the vocabulary has no more
        self._num_generated = 0
        self._num_sent = 0
        self._num_told = 0  # tokens still to come out that were told before
        self._first_token_time: float | None = None
        # The next delta.
        self._token_ids: list[int] = []
        self._rows: list[bytes] = []
        self._text = ""
        # With stop strings: characters searched, those that are in no stop string, and tokens that wait.
        self._num_chars = 0
        self._num_released = 0
        self._held: list[_Token] = []

    def append(self, sample: Sample) -> None:
        """Take the next token."""
        row = None if self._num_logprobs is None else self._pack(sample, self._num_logprobs)
        self._take(sample.token_id, row, ends=sample.ends)

    def go_on_behind(self, token_ids: Sequence[int]) -> None:
        """Take the tokens that were told before, as if they had been sampled; for a new choice.

        Raises:
            EngineFailed: the choice ends with one of them, so it cannot go on.
        """
        self._num_sent = self._num_told = len(token_ids)
        for token_id in token_ids:
            self._take(token_id, None, ends=False)
            if self.ended is not None:
                raise EngineFailed("The answer cannot go on: it ends with tokens that were told before.")

    def _take(self, token_id: int, row: bytes | None, *, ends: bool | None) -> None:
        """Take a token; `ends` None: whether it ends the answer, and why, is known later."""
        self._num_generated += 1
        if token_id in self._end_ids and self._num_generated > self._min_tokens:
            self.end(FinishReason.STOP, None if token_id in self._eos_ids else token_id)
            self._note(row)
            return
        text = self._detokenizer.append(token_id)
        if self._matcher is None or self._num_generated <= self._min_tokens:
            self._send(token_id, text, row)
        else:
            self._hold(_Token(token_id, self._num_chars, text, row), self._matcher)
        if self.ended is None:
            if ends:
                self.end(FinishReason.STOP)
            elif self._repetition is not None and self._repetition.append(token_id):
                self.end(FinishReason.LENGTH, REPETITION)
            elif self._num_generated >= self._max_tokens and ends is not None:
                self.end(FinishReason.LENGTH)

    def end(self, reason: FinishReason, stop_reason: StopReason | None = None) -> None:
        """End the choice and release the text that was held back."""
        self.ended = ChoiceEnd(reason, stop_reason)
        tail = complete_rest(self._detokenizer)
        matcher = self._matcher
        if matcher is not None:
            self._num_released += len(matcher.append(tail)) + len(matcher.flush())
            self._send_released()
            tail = tail[: max(0, self._num_released - self._num_chars)]
            if matcher.matched is not None:
                self._stop(matcher.matched)
        self._text += tail

    def report(self, events: list[EngineEvent], now: float) -> None:
        """Add the delta, if there is one, and the end, if it has come."""
        if self._first_token_time is None and self._num_generated:
            self._first_token_time = now
        if self._token_ids or self._text or self._rows:
            first = self._num_sent + 1
            logprobs = None if self._num_logprobs is None else Logprobs(self._num_logprobs, b"".join(self._rows))
            token_ids = tuple(self._token_ids)
            events.append(TokenDelta(self._request_id, self.choice, first, token_ids, self._text, logprobs))
            self._num_sent += len(token_ids)
            self._token_ids, self._rows, self._text = [], [], ""
        if self.ended is not None:
            params = self._group.request.params
            usage, timings = self._usage(), self._timings(now)
            events.append(Finished(self._request_id, self.choice, self.ended, usage, timings, params))

    def _send(self, token_id: int, text: str, row: bytes | None) -> None:
        if self._num_told:
            self._num_told -= 1
            return
        self._token_ids.append(token_id)
        self._text += text
        self._note(row)

    def _note(self, row: bytes | None) -> None:
        if row is not None:
            self._rows.append(row)

    def _hold(self, token: _Token, matcher: StopMatcher) -> None:
        self._held.append(token)
        self._num_chars += len(token.text)
        self._num_released += len(matcher.append(token.text))
        self._send_released()
        if matcher.matched is not None:
            self._stop(matcher.matched)

    def _send_released(self) -> None:
        while self._held and self._held[0].start + len(self._held[0].text) <= self._num_released:
            token = self._held.pop(0)
            self._send(token.token_id, token.text, token.row)

    def _stop(self, matched: str) -> None:
        """End at a stop string: of the tokens that wait, only the first one's text before the stop string is sent."""
        self.ended = ChoiceEnd(FinishReason.STOP, matched)
        for token in self._held:
            if token.start < self._num_released:
                self._send(token.token_id, token.text[: self._num_released - token.start], token.row)
            else:
                self._note(token.row)

    def _pack(self, sample: Sample, num_top: int) -> bytes:
        found = sample.logprobs
        assert found is not None, "the sampler returns the requested logprobs"
        top_ids, top = found.top_token_ids[:num_top], found.top_logprobs[:num_top]
        self._num_logprobs = len(top_ids)
        return pack_row(sample.token_id, found.logprob, found.rank, top_ids, top)

    def _usage(self) -> Usage:
        group = self._group
        return Usage(
            prompt_tokens=len(group.request.prompt_token_ids),
            completion_tokens=self._num_generated,
            cached_tokens=group.num_cached_tokens,
            preemptions=group.num_preemptions,
            lost_tokens=group.num_lost_tokens,
        )

    def _timings(self, now: float) -> Timings:
        arrival = self._group.request.arrival_time
        scheduled = self._group.first_scheduled_time
        first_token = self._first_token_time
        return Timings(
            queue_s=(now if scheduled is None else scheduled) - arrival,
            first_token_s=(now if first_token is None else first_token) - arrival,
            total_s=now - arrival,
        )


class EmptyChoice(Choice):
    """A choice of a request with `is_prompt_only`: it has no tokens, and ends with the first sample."""

    __slots__ = ()

    def append(self, sample: Sample) -> None:
        """End: the first sample comes with the last token of the prompt, and is no token of the answer."""
        self.end(FinishReason.LENGTH)
