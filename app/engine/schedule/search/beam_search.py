"""Beam search: finds the most likely answers by keeping the best few beginnings at every step.

A beam is an unfinished answer, its score the sum of its tokens' log-probabilities. One step looks at all
continuations of all beams, best first, and with a width of w

- the w best that do not end are the next beams;
- those among the w best of all that end (EOS, stop id) are complete: hypotheses, of which the w best are kept. A lower
  ending is dropped: more than w continuations are looked at only so that w of them do not end;
- at the last step (`max_tokens`) the w best of all are complete, whatever their tokens.

A hypothesis scores its log-probability / length ** length_penalty, the ending token counted in both. Once w are kept,
the search ends at once (`early_stopping` True), or when the best beam cannot get above the worst kept one: at its
present length (False: a heuristic, longer answers may score better), or at the best length still possible ("never").

These are the rules of transformers' `generate(num_beams=w)`, and its arithmetic: scores are rounded to float32
wherever tensors would hold them, so that results are equal to the last bit, given the same log-probabilities. Among
equals the better parent's continuation comes first, and an older hypothesis before a newer one.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterator, Sequence
from math import inf
from operator import attrgetter
from typing import NamedTuple

from app.contract.sampling_params import SamplingParams


class BeamMove(NamedTuple):
    """One of the next beams: beam `parent` of those before the step, with one more token."""

    parent: int
    token_id: int


class Hypothesis(NamedTuple):
    """An answer: all its generated tokens, with the EOS or stop id if one ended it; the higher score is the better."""

    token_ids: tuple[int, ...]
    score: float


class _Beginning(NamedTuple):
    """Some tokens of an answer: the last one and those before it, which beams share (so a step copies no tokens)."""

    before: _Beginning | None
    token_id: int


class _Beam(NamedTuple):
    """A beginning, or an answer, with its score."""

    tokens: _Beginning | None
    score: float


class _Continuation(NamedTuple):
    score: float
    parent: int
    token_id: int


_score = attrgetter("score")
# A divisor that is 0 in float32 (length ** -10 from 31,623 tokens on) would raise; with this, scores are -inf.
_SMALLEST = 2.0**-149


class BeamSearch:
    """The search for the `n` most likely answers to one prompt; `params` are resolved. Engine thread only.

    EOS and stop ids end an answer; none of them is taken before `min_tokens`. With `ignore_eos` EOS is a token like
    others after that.
    """

    def __init__(self, params: SamplingParams, eos_token_ids: Collection[int]) -> None:
        assert params.max_tokens is not None, "admission sets max_tokens"
        stop_ids = frozenset(params.stop_token_ids or ())
        self._width = params.num_sequences
        self._n = params.n
        self._end_ids = stop_ids if params.ignore_eos else stop_ids.union(eos_token_ids)
        self._late_ids = stop_ids.union(eos_token_ids)  # not before `min_tokens`
        self._min_tokens = params.min_tokens
        self._max_tokens = params.max_tokens
        self._length_penalty = float(params.length_penalty)
        self._early_stopping = params.early_stopping
        self._num_generated = 0  # the length of every beam
        self._beams = [_Beam(None, 0.0)]  # best first; none once the search has ended
        self._complete: list[_Beam] = []  # with the scores of hypotheses, best first

    def advance(self, candidates: Sequence[Sequence[tuple[int, float]]]) -> list[BeamMove] | None:
        """Advance by a token, given for each beam its most likely tokens with their log-probabilities, best first.

        Each beam needs `width` tokens and one more for every EOS and stop id; with fewer the search may miss a beam.
        The first step has one beam, the prompt. Returns the next beams, best first: `width` of them, fewer where
        there are not as many continuations. None: the search has ended.
        """
        assert len(candidates) == len(self._beams) > 0, "each beam has its candidates, and the search is not over"
        self._num_generated += 1
        is_last = self._num_generated == self._max_tokens
        moves: list[_Continuation] = []
        ending: list[_Continuation] = []
        for rank, continuation in enumerate(self._continue(candidates)):
            if is_last or continuation.token_id in self._end_ids:
                if rank < self._width:
                    ending.append(continuation)
            elif len(moves) < self._width:
                moves.append(continuation)
            else:
                break
        complete = [*self._complete, *self._complete_now(self._extend(ending))]
        self._complete = sorted(complete, key=_score, reverse=True)[: self._width]
        self._beams = self._extend(moves)
        if not self._can_improve():
            self._beams = []
            return None
        return [BeamMove(move.parent, move.token_id) for move in moves]

    def results(self) -> list[Hypothesis]:
        """Return the `n` best answers, best first.

        Before the search has ended its beams count as if they ended now. Where fewer than `n` answers have been found,
        empty ones follow.
        """
        unfinished = self._complete_now(self._beams) if self._num_generated else []
        found = sorted([*self._complete, *unfinished], key=_score, reverse=True)[: self._n]
        hypotheses = [Hypothesis(_read(beam.tokens), beam.score) for beam in found]
        return hypotheses + [Hypothesis((), -inf)] * (self._n - len(found))

    def _continue(self, candidates: Sequence[Sequence[tuple[int, float]]]) -> Iterator[_Continuation]:
        """Yield the continuations that may be taken, best first."""
        if self._num_generated <= self._min_tokens:
            late = self._late_ids
            candidates = [[found for found in beam if found[0] not in late] for beam in candidates]
        flat = [(i, token_id, logprob) for i, beam in enumerate(candidates) for token_id, logprob in beam]
        scores = _float32([self._beams[i].score + logprob for i, _, logprob in flat])
        for index in sorted(range(len(flat)), key=scores.__getitem__, reverse=True):  # keeps the order of equals
            parent, token_id, _ = flat[index]
            yield _Continuation(scores[index], parent, token_id)

    def _extend(self, continuations: list[_Continuation]) -> list[_Beam]:
        beams = self._beams
        return [_Beam(_Beginning(beams[parent].tokens, token_id), score) for score, parent, token_id in continuations]

    def _complete_now(self, beams: list[_Beam]) -> list[_Beam]:
        """Return beams of the present length with the scores of hypotheses."""
        scores = self._penalize([beam.score for beam in beams], self._num_generated)
        return [_Beam(beam.tokens, score) for beam, score in zip(beams, scores, strict=True)]

    def _can_improve(self) -> bool:
        """Return whether another step may find a hypothesis to keep."""
        if not self._beams:
            return False
        if len(self._complete) < self._width:
            return True
        if self._early_stopping is True:
            return False
        is_best_at_end = self._early_stopping == "never" and self._length_penalty > 0.0
        (best,) = self._penalize([self._beams[0].score], self._max_tokens if is_best_at_end else self._num_generated)
        return best > self._complete[-1].score

    def _penalize(self, scores: list[float], length: int) -> list[float]:
        (divisor,) = _float32([length**self._length_penalty])
        divisor = max(divisor, _SMALLEST)
        return _float32([score / divisor for score in scores])


def _read(tokens: _Beginning | None) -> tuple[int, ...]:
    token_ids = []
    while tokens is not None:
        token_ids.append(tokens.token_id)
        tokens = tokens.before
    return tuple(reversed(token_ids))


def _float32(values: list[float]) -> list[float]:
    """Round to float32: a sum or quotient of float32 numbers becomes what float32 arithmetic makes it."""
    return array("f", values).tolist()
