"""Ranking: of the candidates for one request (`best_of`) the best become its choices, when all of them have ended.

The measure is the mean log-probability of all sampled tokens, the ending one included, under the raw logits; of equals
the candidate that comes first. Until then nothing is sent, not even logprobs or an end. If the request is aborted, what
the best candidates have so far is sent.

Engine thread only.
"""

from __future__ import annotations

from math import inf

from app.contract.events import ChoiceEnd, EngineEvent, FinishReason
from app.engine.choice import Choice
from app.engine.schedule.group import SequenceGroup
from app.engine.schedule.step_plan import Sample
from app.text.tokens.tokenizer import Tokenizer


class Candidate(Choice):
    """A choice that sends nothing until it is among the best."""

    __slots__ = ("_total_logprob",)

    def __init__(self, group: SequenceGroup, choice: int, tokenizer: Tokenizer, eos_token_ids: frozenset[int]) -> None:
        super().__init__(group, choice, tokenizer, eos_token_ids)
        self._total_logprob = 0.0

    @property
    def mean_logprob(self) -> float:
        """The log-probability per token; without tokens the lowest."""
        return self._total_logprob / self._num_generated if self._num_generated else -inf

    def append(self, sample: Sample) -> None:
        assert sample.logprobs is not None, "the sampler returns the logprobs for the ranking"
        self._total_logprob += sample.logprobs.logprob
        super().append(sample)

    def report(self, events: list[EngineEvent], now: float) -> None:
        """Add no events; `release` does."""
        if self._first_token_time is None:
            self._first_token_time = now

    def release(self, choice: int, events: list[EngineEvent], now: float) -> None:
        """Add all text in one delta, and the end, as `choice` of the request."""
        self.choice = choice
        super().report(events, now)


class Ranking:
    """The candidates of one request, added in the order of their sequences."""

    def __init__(self, num_chosen: int) -> None:
        self._num_chosen = num_chosen
        self._candidates: list[Candidate] = []

    @property
    def is_complete(self) -> bool:
        """Whether all candidates have ended."""
        return all(candidate.ended is not None for candidate in self._candidates)

    def add(self, candidate: Candidate) -> None:
        """Add a candidate."""
        self._candidates.append(candidate)

    def cancel(self) -> None:
        """End all candidates as cancelled, those too that had ended by themselves."""
        for candidate in self._candidates:
            if candidate.ended is None:
                candidate.end(FinishReason.CANCELLED)
            candidate.ended = ChoiceEnd(FinishReason.CANCELLED)

    def release(self, events: list[EngineEvent], now: float) -> None:
        """Add the events of the best candidates, best first; they are choices 0, 1, 2, ... from now on."""
        ranked = sorted(self._candidates, key=lambda candidate: candidate.mean_logprob, reverse=True)
        for choice, candidate in enumerate(ranked[: self._num_chosen]):
            candidate.release(choice, events, now)
