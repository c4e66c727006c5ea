"""Sampled tokens to events: detokenizing, stop strings, finish reasons, logprobs, usage. The only loop over outputs.

The deltas of a choice are sent step by step (see choice.py). Where the choices depend on all sequences of a request,
nothing is sent until they have ended: of `best_of` candidates the best are released (see ranking.py); a beam search has
no samples at all, only results. Each choice is then one delta and its end.

A request whose output cannot be made fails, and the other requests continue. Engine thread only.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from functools import partial

from app.contract.engine_counts import PromptCounts
from app.contract.errors import NOT_OURS, EngineFailed, QuireError
from app.contract.events import ChoiceEnd, EngineEvent, FinishReason, PromptScored, RequestFailed
from app.contract.packed_logprobs import Logprobs
from app.engine.choice import Choice, EmptyChoice
from app.engine.embedding import EmbeddingOutput
from app.engine.ranking import Candidate, Ranking
from app.engine.schedule.group import SequenceGroup
from app.engine.schedule.scheduler import Scheduler
from app.engine.schedule.sequence import Sequence
from app.engine.schedule.step_plan import Sample
from app.engine.schedule.step_results import StepProgress
from app.observe.shown_id import shown_id
from app.runtime.contain import contain
from app.text.tokens.tokenizer import Tokenizer

_log = logging.getLogger("quire.engine")

FAILED_REQUEST = "the engine failed on request %s: %s"


class OutputProcessor:
    """Turns samples into events for all sequences of the engine, and ends the complete ones in the scheduler.

    Attributes:
        counts: the prompt tokens of all requests that have gained a token.
    """

    def __init__(self, scheduler: Scheduler, tokenizer: Tokenizer, eos_token_ids: Collection[int]) -> None:
        self._scheduler = scheduler
        self._tokenizer = tokenizer
        self._eos_token_ids = frozenset(eos_token_ids)
        self._choices: dict[int, Choice | EmbeddingOutput] = {}  # by id of an unfinished sequence; none for beams
        self._rankings: dict[int, Ranking] = {}  # by group id
        self._without_token: set[int] = set()  # ids of groups without a token so far
        self.counts = PromptCounts()

    @property
    def num_open(self) -> int:
        """Sequences whose output has not ended; beams have none."""
        return len(self._choices)

    def add(self, group: SequenceGroup) -> list[EngineEvent]:
        """Add a new group, before its first sample; the only event is that its request has failed."""
        events: list[EngineEvent] = []
        self._without_token.add(group.id)
        if group.search is not None:
            return events
        with contain(partial(self._fail_into, events, group)):
            for sequence in group.sequences:
                assert sequence.id not in self._choices, "a sequence is added once"
                choice = self._choices[sequence.id] = self._new_choice(sequence)
                if sequence.output_token_ids and isinstance(choice, Choice):
                    choice.go_on_behind(sequence.output_token_ids)
        return events

    def process(self, progress: StepProgress, now: float) -> list[EngineEvent]:
        """Process one step's samples in order: at most one delta per sequence, then `Finished` if the sequence ends.

        Samples of sequences that have ended or were dropped are ignored. `now` is the time of the step's end.
        """
        events: list[EngineEvent] = []
        failed: dict[SequenceGroup, BaseException] = {}
        touched: list[tuple[Sequence, Choice | EmbeddingOutput]] = []
        for sequence, sample in progress.gained:
            choice = self._choices.get(sequence.id)
            if choice is None or choice.ended is not None:
                continue
            if not choice.is_touched:
                choice.is_touched = True
                touched.append((sequence, choice))
            try:
                choice.append(sample)
            except NOT_OURS:
                raise
            except BaseException as error:
                del self._choices[sequence.id]
                touched.remove((sequence, choice))
                failed[sequence.group] = error
        for sequence, choice in touched:
            choice.is_touched = False
            if self._without_token:
                self._begin(sequence.group, events)
            self._report(sequence, choice, events, now)
        for group, cause in failed.items():
            events.append(self.fail(group, cause))
        for group in progress.searched:
            self._begin(group, events)
            self._scheduler.finish_group(group)
            with contain(partial(self._fail_into, events, group)):
                self._report_search(group, None, events, now)
        return events

    def end(self, sequence: Sequence, reason: FinishReason, now: float) -> list[EngineEvent]:
        """Return the last events of a sequence whose answer has ended with its last token, reported before."""
        events: list[EngineEvent] = []
        choice = self._choices.get(sequence.id)
        if isinstance(choice, Choice):
            with contain(partial(self._fail_into, events, sequence.group)):
                choice.end(reason)
                self._report(sequence, choice, events, now)
        return events

    def cancel(self, group: SequenceGroup, now: float) -> list[EngineEvent]:
        """Return the last events of a request that was aborted.

        Text that was held back is sent, but no unfinished character. Where the choices are ranked, the best so far are
        sent, and every choice ends as cancelled.
        """
        events: list[EngineEvent] = []
        self._without_token.discard(group.id)
        ranking = self._rankings.pop(group.id, None)
        choices = [self._choices.pop(sequence_id, None) for sequence_id in group.sequence_ids]
        with contain(partial(self._fail_into, events, group)):
            if group.search is not None:
                self._report_search(group, FinishReason.CANCELLED, events, now)
            elif ranking is not None:
                ranking.cancel()
                ranking.release(events, now)
            else:
                for choice in (each for each in choices if each is not None):
                    choice.end(FinishReason.CANCELLED)
                    choice.report(events, now)
        return events

    def fail(self, group: SequenceGroup, error: BaseException) -> RequestFailed:
        """End a request that the engine cannot answer because of `error`; the other requests continue.

        Only the message of a QuireError is for clients.
        """
        trace = None if error.__traceback__ is None else error  # else it says nothing but the message again
        _log.error(FAILED_REQUEST, shown_id(group.request.id), error, exc_info=trace)
        self._scheduler.finish_group(group)
        self.drop(group)
        failure = EngineFailed("The engine failed while it computed this answer; try again.")
        return RequestFailed(group.request.id, (error if isinstance(error, QuireError) else failure).info())

    def reject(self, group: SequenceGroup, error: QuireError) -> RequestFailed:
        """End a request that cannot be answered, by the client's mistake; the other requests continue."""
        _log.info("request %s failed: %s", shown_id(group.request.id), error)
        self._scheduler.finish_group(group)
        self.drop(group)
        return RequestFailed(group.request.id, error.info())

    def drop(self, group: SequenceGroup) -> None:
        """Drop the pending output of a group without an event."""
        self._without_token.discard(group.id)
        self._rankings.pop(group.id, None)
        for sequence_id in group.sequence_ids:
            self._choices.pop(sequence_id, None)

    def _report(
        self, sequence: Sequence, choice: Choice | EmbeddingOutput, events: list[EngineEvent], now: float
    ) -> None:
        """Report what is new of a sequence, and end it if it is complete."""
        choice.report(events, now)
        if choice.ended is not None:
            del self._choices[sequence.id]
            self._scheduler.finish(sequence)
            self._release_if_complete(sequence.group, events, now)

    def _fail_into(self, events: list[EngineEvent], group: SequenceGroup, error: BaseException) -> None:
        events.append(self.fail(group, error))

    def _new_choice(self, sequence: Sequence) -> Choice | EmbeddingOutput:
        group, params = sequence.group, sequence.request.params
        if group.request.pooling is not None:
            return EmbeddingOutput(sequence)
        if group.request.is_prompt_only:
            return EmptyChoice(group, sequence.choice, self._tokenizer, self._eos_token_ids)
        if not params.is_ranked:
            return Choice(group, sequence.choice, self._tokenizer, self._eos_token_ids)
        candidate = Candidate(group, sequence.choice, self._tokenizer, self._eos_token_ids)
        self._rankings.setdefault(group.id, Ranking(params.n)).add(candidate)
        return candidate

    def _begin(self, group: SequenceGroup, events: list[EngineEvent]) -> None:
        """Count a group's prompt, at its first token, and report the prompt's scores if they are wanted."""
        if group.id not in self._without_token:
            return
        self._without_token.remove(group.id)
        self.counts.num_tokens += len(group.request.prompt_token_ids)
        self.counts.num_cached += group.num_cached_tokens
        self.counts.num_loaded += group.num_loaded_tokens
        if group.request.params.prompt_logprobs is not None:
            leader = group.sequences[0]
            events.append(PromptScored(group.request.id, Logprobs.of_rows(b"".join(leader.scores), leader.num_scored)))
            leader.scores.clear()

    def _release_if_complete(self, group: SequenceGroup, events: list[EngineEvent], now: float) -> None:
        ranking = self._rankings.get(group.id)
        if ranking is not None and ranking.is_complete:
            del self._rankings[group.id]
            ranking.release(events, now)

    def _report_search(
        self, group: SequenceGroup, reason: FinishReason | None, events: list[EngineEvent], now: float
    ) -> None:
        """Convert the hypotheses as if their tokens had just been sampled; `reason` None: as they ended."""
        assert group.search is not None
        for index, hypothesis in enumerate(group.search.results()):
            choice = Choice(group, index, self._tokenizer, self._eos_token_ids)
            for token_id in hypothesis.token_ids:
                choice.append(Sample(0, token_id))
            if choice.ended is None:
                choice.end(reason or FinishReason.LENGTH)
            if reason is not None:
                choice.ended = ChoiceEnd(reason)
            choice.report(events, now)
