"""Sampled tokens to events: detokenizing, stop strings, finish reasons, logprobs, usage. The only loop over outputs.

An answer's deltas are sent step by step (see choice.py). Where the choices depend on all sequences of a request,
nothing is sent until they have ended: of `best_of` candidates the best are released (see ranking.py); a beam search has
no samples at all, only results. Each choice is then one delta and its end.

Engine thread only.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from collections.abc import Sequence as Sequenced
from typing import NamedTuple

from app.contract.errors import NOT_OURS
from app.contract.events import EngineEvent, FinishReason
from app.engine.choice import Choice
from app.engine.ranking import Candidate, Ranking
from app.engine.schedule.group import SequenceGroup
from app.engine.schedule.search.beam_search import Hypothesis
from app.engine.schedule.sequence import Sequence
from app.engine.schedule.step_plan import Sample
from app.text.tokenizer import Tokenizer


class Outputs(NamedTuple):
    """The output of a step: events to deliver, sequences that have ended, and those whose text failed."""

    events: list[EngineEvent]
    ended: list[tuple[Sequence, FinishReason]]
    failed: list[tuple[Sequence, BaseException]]


class OutputProcessor:
    """Turns samples into events for all sequences of the engine.

    Attributes:
        num_prompt_tokens: prompt tokens of all requests that have gained a token, cached or not.
    """

    def __init__(self, tokenizer: Tokenizer, eos_token_ids: Collection[int]) -> None:
        self._tokenizer = tokenizer
        self._eos_token_ids = frozenset(eos_token_ids)
        self._answers: dict[int, Choice] = {}  # by id of an unfinished sequence; none for beams
        self._rankings: dict[int, Ranking] = {}  # by group id
        self._searches: set[int] = set()  # ids of groups with an unfinished beam search
        self._unanswered: set[int] = set()  # ids of groups without a token so far
        self.num_prompt_tokens = 0

    def add(self, sequence: Sequence) -> None:
        """Add a new sequence; those of one group are added together, before the first sample of any."""
        assert sequence.id not in self._answers, "a sequence is added once"
        group, params = sequence.group, sequence.request.params
        self._unanswered.add(group.id)
        if params.use_beam_search:
            self._searches.add(group.id)
        elif params.is_ranked:
            candidate = Candidate(group, sequence.choice, self._tokenizer, self._eos_token_ids)
            self._answers[sequence.id] = candidate
            self._rankings.setdefault(group.id, Ranking(params.n)).add(candidate)
        else:
            self._answers[sequence.id] = Choice(group, sequence.choice, self._tokenizer, self._eos_token_ids)

    def drop(self, sequence: Sequence) -> None:
        """Forget a sequence without an event (its request has failed); ended and unknown ones are ignored."""
        self._answers.pop(sequence.id, None)
        self._rankings.pop(sequence.group.id, None)
        self._searches.discard(sequence.group.id)
        self._unanswered.discard(sequence.group.id)

    def process(self, progress: Iterable[tuple[Sequence, Sample]], now: float) -> Outputs:
        """Process one step's samples in order: at most one delta per sequence, then `Finished` if the sequence ends.

        Samples of sequences that have ended or were dropped are ignored. A sequence whose text cannot be decoded is
        dropped and returned with the exception; the others are not affected. `now` is the time of the step's end.
        """
        events: list[EngineEvent] = []
        ended: list[tuple[Sequence, FinishReason]] = []
        failed: list[tuple[Sequence, BaseException]] = []
        touched: list[tuple[Sequence, Choice]] = []
        for sequence, sample in progress:
            answer = self._answers.get(sequence.id)
            if answer is None or answer.reason is not None:
                continue
            if not answer.is_touched:
                answer.is_touched = True
                touched.append((sequence, answer))
            try:
                answer.append(sample)
            except NOT_OURS:
                raise
            except BaseException as error:
                self.drop(sequence)
                touched.remove((sequence, answer))
                failed.append((sequence, error))
        for sequence, answer in touched:
            answer.is_touched = False
            if self._unanswered:
                self._count_prompt(sequence.group)
            answer.report(events, now)
            if answer.reason is not None:
                del self._answers[sequence.id]
                ended.append((sequence, answer.reason))
                self._release_if_complete(sequence.group, events, now)
        return Outputs(events, ended, failed)

    def finish_search(self, group: SequenceGroup, hypotheses: Sequenced[Hypothesis], now: float) -> list[EngineEvent]:
        """Return the events of a beam search that has ended: `hypotheses`, best first, are the choices.

        [] if the group was finished or dropped before. Raises what the tokenizer raises; the request is then forgotten.
        """
        self._count_prompt(group)
        return self._finish_search(group, hypotheses, None, now)

    def finish(self, sequence: Sequence, reason: FinishReason, now: float) -> list[EngineEvent]:
        """End a sequence from outside and return its last events; [] if the sequence has ended already.

        Text that was held back is sent, but no unfinished character when the reason is `cancelled`. Where the choices
        are ranked all sequences of the request end at once: the best so far are sent, and every choice ends for this
        `reason`.
        """
        events: list[EngineEvent] = []
        group = sequence.group
        self._unanswered.discard(group.id)
        if group.search is not None:
            return self._finish_search(group, group.search.results(), reason, now)
        ranking = self._rankings.pop(group.id, None)
        if ranking is not None:
            for member in group.sequences:
                self._answers.pop(member.id, None)
            ranking.cut(reason)
            ranking.release(events, now)
            return events
        answer = self._answers.pop(sequence.id, None)
        if answer is not None:
            answer.end(reason)
            answer.report(events, now)
        return events

    def _count_prompt(self, group: SequenceGroup) -> None:
        if group.id in self._unanswered:
            self._unanswered.remove(group.id)
            self.num_prompt_tokens += len(group.request.prompt_token_ids)

    def _release_if_complete(self, group: SequenceGroup, events: list[EngineEvent], now: float) -> None:
        ranking = self._rankings.get(group.id)
        if ranking is not None and ranking.is_complete:
            del self._rankings[group.id]
            ranking.release(events, now)

    def _finish_search(
        self, group: SequenceGroup, hypotheses: Sequenced[Hypothesis], reason: FinishReason | None, now: float
    ) -> list[EngineEvent]:
        """Convert the hypotheses as if their tokens had just been sampled; `reason` None: as they ended."""
        events: list[EngineEvent] = []
        if group.id not in self._searches:
            return events
        self._searches.remove(group.id)
        for choice, hypothesis in enumerate(hypotheses):
            answer = Choice(group, choice, self._tokenizer, self._eos_token_ids)
            for token_id in hypothesis.token_ids:
                answer.append(Sample(0, token_id))
            if answer.reason is None:
                answer.end(reason or FinishReason.LENGTH)
            answer.reason = reason or answer.reason
            answer.report(events, now)
        return events
