"""Samples tokens from logits on the host, one state row at a time.

The order is the same on every device: logit bias; repetition, presence and frequency penalties; the mask of a grammar;
temperature; top-k; top-p; min-p; Gumbel-max. Log-probabilities are the log-softmax of the raw logits. Every step works
on one row at a time or is independent per row, so a row's token does not depend on the others.

A sample depends on its position and, with penalties, on the tokens before that position. A sequence with draft tokens
(see schedule/speculation) samples at several positions in one step: each sample counts as the token before the next
one. If the sample is accepted, the next one equals that of a separate step; if not, both are sampled again later, and
the counts of the positions from there on are removed.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from app.engine.execute.noise import gumbel, noise_bits
from app.engine.schedule.row_sampling import RowSampling
from app.engine.schedule.step_plan import NO_ALLOWED_TOKEN, NO_TOKEN, RowStart, SampleLogprobs
from app.runtime.lazy_property import lazy_property

# Top-p sorts this many best tokens first; only a flatter distribution needs a full sort.
_TOP_P_PREFIX = 1024
_LARGEST = torch.finfo(torch.float32).max


class SamplingRow:
    """The sampling state of one running sequence: its parameters and, for penalties, its output so far.

    Costly parts are made on first access, because rows that a device samples do not need them.
    """

    def __init__(self, start: RowStart, eos_token_ids: Collection[int]) -> None:
        self.sampling = start.sampling
        self.has_penalties = start.sampling.has_penalties
        self.choice = start.choice
        self.num_prompt = len(start.prompt_token_ids)
        self._start = start
        self._eos_token_ids = eos_token_ids

    @lazy_property
    def num_logprobs(self) -> int | None:
        """The number of best tokens whose log-probabilities come with each token; None: not even the token's own."""
        beams = self.sampling.num_sequences
        if self.sampling.is_beam_search:  # the best may all end the output; others must remain
            return beams + max(beams, len(self.endings))
        return self.sampling.num_logprobs

    @lazy_property
    def output(self) -> list[int]:
        """The output so far; updated only for rows with penalties."""
        return list(self._start.output_token_ids)

    @lazy_property
    def counts(self) -> Counter[int]:
        """How often each token occurs in the output; updated only for rows with penalties."""
        return Counter(self._start.output_token_ids)

    @lazy_property
    def prompt(self) -> Tensor:
        """The different tokens of the prompt."""
        return torch.tensor(sorted(set(self._start.prompt_token_ids)), dtype=torch.int64)

    @lazy_property
    def endings(self) -> Tensor:
        """The tokens that may end an output."""
        return torch.tensor(self.sampling.endings(self._eos_token_ids), dtype=torch.int64)

    @lazy_property
    def bias(self) -> tuple[Tensor, Tensor]:
        """The tokens that have a bias, and their biases."""
        biases = self.sampling.logit_bias
        return torch.tensor(list(biases), dtype=torch.int64), torch.tensor(list(biases.values()), dtype=torch.float32)

    def is_plain_greedy(self, position: int) -> bool:
        """Return whether the token at `position` is the argmax of the raw logits."""
        return (
            self.sampling.is_greedy
            and self.sampling.constraint is None
            and not self.has_penalties
            and not self.sampling.logit_bias
            and position - self.num_prompt >= self.sampling.min_tokens
        )

    def rewind(self, position: int) -> None:
        """Remove the samples for `position` and after, which did not become part of the output."""
        while self.num_prompt + len(self.output) > position:
            token_id = self.output.pop()
            self.counts[token_id] -= 1
            if not self.counts[token_id]:
                del self.counts[token_id]

    def append(self, token_id: int) -> None:
        """Count a sampled token."""
        self.output.append(token_id)
        self.counts[token_id] += 1

    def adjusted(self, raw_V: Tensor, position: int, allowed_V: Tensor | None = None) -> Tensor:
        """Return new logits with bias, penalties, mask and temperature; forbidden tokens are -inf, never NaN."""
        logits_V, sampling = raw_V.clone(), self.sampling
        if sampling.logit_bias:
            ids, biases = self.bias
            logits_V[ids] += biases
        if self.has_penalties:
            self._penalize(logits_V, sampling)
        if not sampling.is_greedy:
            logits_V.div_(sampling.temperature)
        torch.nan_to_num(logits_V, nan=-math.inf, posinf=_LARGEST, neginf=-math.inf, out=logits_V)
        if allowed_V is not None:
            logits_V[~allowed_V] = -math.inf
        if position - self.num_prompt < sampling.min_tokens:
            logits_V[self.endings] = -math.inf
        return logits_V

    def _penalize(self, logits_V: Tensor, sampling: RowSampling) -> None:
        output = torch.tensor(list(self.counts), dtype=torch.int64)
        if sampling.repetition != 1.0:
            seen = torch.unique(torch.cat([self.prompt, output]))
            values = logits_V[seen]
            logits_V[seen] = torch.where(values > 0, values / sampling.repetition, values * sampling.repetition)
        if len(output):
            counts = torch.tensor(list(self.counts.values()), dtype=torch.float32)
            logits_V[output] -= sampling.presence + sampling.frequency * counts


class Sampler:
    """Holds the sampling state of every row. Engine thread only."""

    def __init__(self, eos_token_ids: Collection[int]) -> None:
        self._eos_token_ids = tuple(eos_token_ids)
        self._rows: dict[int, SamplingRow] = {}

    def start(self, start: RowStart) -> None:
        """Start the state of a sequence that takes a row; it replaces any earlier state of the row."""
        self._rows[start.row] = SamplingRow(start, self._eos_token_ids)

    def release(self, row: int) -> None:
        """Drop the state of a row."""
        self._rows.pop(row, None)

    @torch.inference_mode()
    def sample(
        self,
        logits_RV: Tensor,
        rows: Sequence[int],
        positions: Sequence[int],
        device_token_ids: Sequence[int] | None = None,
        allowed: Callable[[int], Tensor | None] = lambda index: None,
    ) -> list[tuple[int, SampleLogprobs | None]]:
        """Sample one token for each of `rows`, whose logits are the first rows of `logits_RV`, and count it.

        `positions` are the positions of the sampled tokens in prompt + output. A row that comes several times samples
        for one position after the other. `device_token_ids` are tokens that the device has sampled already, -1 for the
        others: they are returned as they are and not counted, for a row's tokens are all sampled here or none.
        `allowed` returns the tokens that a sample may be, by its index, as booleans [V]; None: every one. Where none of
        them has a finite logit, the token is NO_ALLOWED_TOKEN.
        """
        greedy = self._greedy_tokens(logits_RV, rows, positions) if device_token_ids is None else ()
        sampled: list[tuple[int, SampleLogprobs | None]] = []
        for index, (logits_V, row, position) in enumerate(zip(logits_RV, rows, positions, strict=False)):
            if device_token_ids is not None and device_token_ids[index] != NO_TOKEN:
                sampled.append((device_token_ids[index], None))
                continue
            state, token_id = self._rows[row], greedy[index] if greedy else -1
            if state.has_penalties:
                state.rewind(position)
            if token_id < 0:
                token_id = _sample(logits_V, state, position, allowed(index))
            if token_id < 0:
                sampled.append((token_id, None))
                continue
            if state.has_penalties:
                state.append(token_id)
            num_top = state.num_logprobs
            sampled.append((token_id, None if num_top is None else token_logprobs(logits_V, token_id, num_top)))
        return sampled

    def _greedy_tokens(self, logits_RV: Tensor, rows: Sequence[int], positions: Sequence[int]) -> list[int]:
        """Return the id of each row's largest logit where the row is plain greedy, else -1."""
        values, tokens = torch.max(logits_RV[: len(rows)], dim=-1)  # a NaN counts as the largest
        return [
            token_id if self._rows[row].is_plain_greedy(position) and largest > -math.inf else -1
            for row, position, largest, token_id in zip(rows, positions, values.tolist(), tokens.tolist(), strict=True)
        ]


def _sample(raw_V: Tensor, state: SamplingRow, position: int, allowed_V: Tensor | None) -> int:
    """Sample one token; a NaN logit counts as impossible, and where all are, the result is NO_TOKEN."""
    logits_V = state.adjusted(raw_V, position, allowed_V)
    if float(logits_V.max()) == -math.inf:
        has_numbers = bool((raw_V > -math.inf).any())
        return NO_ALLOWED_TOKEN if allowed_V is not None and has_numbers else NO_TOKEN
    if state.sampling.is_greedy:
        return int(torch.argmax(logits_V))
    candidates = _candidates(logits_V, state)
    scores = logits_V.numpy()
    tokens = np.arange(len(scores), dtype=np.uint32) if candidates is None else candidates.numpy().astype(np.uint32)
    noise = gumbel(noise_bits(state.sampling.seed, state.choice, position, tokens))
    return int(tokens[np.argmax(scores[tokens] + noise)])


def _candidates(logits_V: Tensor, state: SamplingRow) -> Tensor | None:
    """Return the token ids, ascending, that top-k, top-p and min-p leave, in this order; None means all."""
    ids: Tensor | None = None
    left = logits_V  # the logits of `ids`
    sampling = state.sampling
    if 0 < sampling.top_k < len(logits_V):
        ids = torch.nonzero(logits_V >= torch.topk(logits_V, sampling.top_k).values[-1]).flatten()
        left = logits_V[ids]
    for is_on, threshold in ((sampling.top_p < 1.0, _top_p_threshold), (sampling.min_p > 0.0, _min_p_threshold)):
        if is_on:
            kept = torch.nonzero(left >= threshold(left, state)).flatten()
            ids = kept if ids is None else ids[kept]
            left = left[kept]
    return ids


def _top_p_threshold(logits: Tensor, state: SamplingRow) -> Tensor:
    """Return the logit of the last token of the smallest set, best first, whose probabilities reach top-p."""
    log_total = torch.logsumexp(logits, dim=-1)
    for count in (min(_TOP_P_PREFIX, len(logits)), len(logits)):
        best = torch.topk(logits, count).values
        reached = torch.nonzero(torch.cumsum(torch.exp(best - log_total), dim=-1) >= state.sampling.top_p)
        if len(reached):
            return best[reached[0, 0]]
    return best[-1]  # rounding kept the sum just under top-p: all tokens stay


def _min_p_threshold(logits: Tensor, state: SamplingRow) -> Tensor:
    """Return the logit of a token that is min-p times as likely as the best one."""
    return logits.max() + math.log(state.sampling.min_p)


def token_logprobs(raw_V: Tensor, token_id: int, num_top: int) -> SampleLogprobs:
    """Return the log-probability and rank of `token_id` in raw logits [V] on the CPU, and the `num_top` best tokens.

    The order among tokens is that of their logits, also where two log-probabilities round to the same number.
    """
    logits_V, logprobs_V = raw_V, torch.log_softmax(raw_V, dim=-1)
    if math.isnan(logprobs_V[token_id]):  # one broken logit breaks the sum for all
        logits_V = torch.nan_to_num(raw_V, -_LARGEST, _LARGEST, -_LARGEST)
        logprobs_V = torch.log_softmax(logits_V, dim=-1)
    values = logprobs_V.numpy()
    top_ids = _top_ids(logits_V, num_top) if num_top else np.empty(0, np.int64)
    rank = int(torch.count_nonzero(logits_V > logits_V[token_id])) + 1
    return SampleLogprobs(float(values[token_id]), rank, tuple(top_ids.tolist()), tuple(values[top_ids].tolist()))


def _top_ids(values_V: Tensor, count: int) -> npt.NDArray[np.int64]:
    """Return the ids of the `count` largest values, largest first, the lowest id first among equals."""
    values = values_V.numpy()
    threshold = torch.topk(values_V, min(count, len(values))).values.numpy()[-1]
    ids = np.flatnonzero(values >= threshold)
    return ids[np.argsort(-values[ids], kind="stable")[:count]]
