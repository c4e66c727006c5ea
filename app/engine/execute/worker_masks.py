"""Masks that another process makes, for grammars of clients (see text/grammar/children/mask_worker).

After each step that process lets the sequences take their tokens, says which are complete, and makes their next masks,
while this one makes the texts of the step's tokens. A sequence whose mask is not there when the next step is planned,
within `WAIT_S`, is late, and sits that step out. So no step waits longer for what takes long, and hardly anything is
computed in vain.

    READY ──step, tokens to take──▶ late ──tokens taken, mask found──▶ READY
                                      └──tokens taken: complete──▶ the answer ends

An answer with as many tokens as it may have ends as soon as these are taken: only then is it known why.

What becomes of a sequence when that process ends is told in remote_sequences.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from torch import Tensor

from app.engine.execute.local_masks import MAX_THREADS, LocalMasks
from app.engine.execute.masks import (
    NOTHING_LEFT,
    Accepted,
    AnswerEnd,
    MaskBuffers,
    Masks,
    RowSamples,
    SampleMasks,
    samples_of,
)
from app.engine.execute.remote_sequence import RemoteSequence
from app.engine.execute.remote_sequences import RemoteSequences
from app.engine.schedule.row_sampling import RowSampling
from app.engine.schedule.step_plan import NO_ALLOWED_TOKEN, NO_TOKEN, NOT_SAMPLED, RowStart, StepPlan
from app.runtime.clock import Clock, monotonic
from app.text.grammar.cache import GrammarCache
from app.text.grammar.children.mask_messages import MAX_AHEAD, Setup
from app.text.grammar.children.mask_workers import MaskWorkers
from app.text.grammar.vocabulary import mask_words

WAIT_S = 0.02
"""How long a step waits for what becomes of the last one's tokens, and for the masks behind them."""
DRAFT_WAIT_S = 0.02
"""How long a step waits for the masks behind draft tokens."""
START_WAIT_S = 0.005
"""How long a step waits for the first masks of sequences that could begin with it."""
IDLE_S = 0.02
"""How long a step without anything else to compute waits for masks at a time."""
REGIONS_PER_ROW = 4
"""Masks of sequences without a row stay too, while there is room."""


def make_masks(
    grammars: GrammarCache,
    buffers: MaskBuffers,
    vocab_size: int,
    eos_token_ids: Collection[int],
    num_threads: int,
    num_rows: int,
) -> Masks:
    """Return the masks of a runner with `num_rows` rows: made by another process for grammars of clients."""
    masks = SampleMasks(buffers, vocab_size)
    local = LocalMasks(grammars, masks, eos_token_ids, num_threads)
    if not grammars.is_served:
        return local
    num_sequences = REGIONS_PER_ROW * num_rows
    setup = Setup(
        num_threads=max(1, min(num_threads, MAX_THREADS)),
        num_words=mask_words(vocab_size),
        num_regions=num_sequences + len(masks.words) + MAX_AHEAD * num_rows,
        eos_token_ids=tuple(eos_token_ids),
    )
    workers = grammars.workers = MaskWorkers(lambda: grammars.children, setup)
    return WorkerMasks(workers, local, masks, grammars, num_sequences)


class WorkerMasks:
    """Implements `Masks` and, for the scheduler, `LateSequences`. Engine thread only.

    `local` has the sequences without a grammar, whose reasoning is limited.
    """

    def __init__(
        self,
        workers: MaskWorkers,
        local: LocalMasks,
        masks: SampleMasks,
        grammars: GrammarCache,
        num_sequences: int,
        clock: Clock = monotonic,
    ) -> None:
        self._local = local
        self._masks = masks
        self._clock = clock
        self._remote = RemoteSequences(workers, grammars, num_sequences, clock)
        self._rows: dict[int, RemoteSequence] = {}
        self._samples: list[tuple[RowSamples, RemoteSequence]] = []
        self._taking: list[RemoteSequence] = []  # in the last step
        self._taking_until = 0.0
        self._ahead_of: dict[int, RemoteSequence] = {}  # by row: what has the regions for masks behind forced tokens
        self._may_draft = False  # in a step like the last one
        self._first_draft_region = num_sequences
        self._first_ahead_region = num_sequences + len(masks.words)

    # --- Rows -----------------------------------------------------------------------------------------------------

    @property
    def buffers(self) -> MaskBuffers:
        return self._masks.buffers

    @property
    def rows(self) -> Collection[int]:
        return self._rows.keys() | self._local.rows.keys() if self._local.rows else self._rows.keys()

    def start(self, start: RowStart) -> None:
        """Begin the constraint of a sequence; one that had a row before goes on where it was."""
        self.release(start.row)
        constraint = start.sampling.constraint
        if constraint is None or constraint.grammar is None:
            self._local.start(start)
            return
        sequence = self._remote.start(start.sequence_id, start.sampling, start.output_token_ids)
        sequence.has_row, sequence.ahead, sequence.ahead_region = True, None, -1
        self._rows[start.row] = sequence

    def release(self, row: int) -> None:
        """Drop the constraint of a row; what is known of its sequence stays until its `end`."""
        self._local.release(row)
        if (sequence := self._rows.pop(row, None)) is not None:
            sequence.has_row = False

    def end(self, sequence_id: int) -> None:
        self._remote.end(sequence_id)

    def forced(self, row: int) -> Sequence[int]:
        sequence = self._rows.get(row)
        if sequence is None:
            return self._local.forced(row)
        return sequence.forced if sequence.is_ready and not sequence.is_slow else ()

    # --- Late sequences -------------------------------------------------------------------------------------------

    def prepare(self, sequence_id: int, sampling: RowSampling, token_ids: Sequence[int], *, is_next: bool) -> None:
        self._remote.prepare(sequence_id, sampling, token_ids, is_next=is_next)

    def has_mask(self, sequence_id: int, num_tokens: int) -> bool:
        sequence = self._remote.get(sequence_id)
        if sequence is None:
            return False
        return sequence.failure is not None or (sequence.is_ready and len(sequence.tokens) == num_tokens)

    def late(self) -> Collection[int]:
        late, ended = self._remote.late, self._remote.ended
        if late:
            self._remote.read(0.0)
        while late and (left := max(map(_awaited_until, late.values())) - self._clock()) > 0:
            self._remote.read(left)
        return {sequence.id for found in (late, ended) for sequence in found.values()}

    def is_slow(self, sequence_id: int) -> bool:
        sequence = self._remote.get(sequence_id)
        return sequence is not None and sequence.is_slow

    def wait(self) -> None:
        late, ended = self._remote.late, self._remote.ended
        if number := len(late):
            self._remote.receive(lambda: bool(ended) or len(late) < number, self._clock() + IDLE_S)

    def take_ends(self) -> Sequence[AnswerEnd]:
        if self._taking:
            self._remote.wait_for_answers(self._taking, self._taking_until)
            self._taking = []
        ended = self._remote.ended
        if not ended:
            return ()
        found = [AnswerEnd(each.id, len(each.tokens), each.is_complete) for each in ended.values()]
        ended.clear()
        return found

    # --- Steps ----------------------------------------------------------------------------------------------------

    @property
    def has_constraints(self) -> bool:
        return bool(self._samples) or self._local.has_constraints

    def fill(self, plan: StepPlan) -> bool:
        self._local.fill(plan)
        self._samples, self._may_draft = [], not plan.num_prompt_tokens
        if not self._rows:
            return self._masks.has_any
        self._samples = [(samples, self._rows[samples.row]) for samples in samples_of(plan, self._rows)]
        sequences = [sequence for _, sequence in self._samples]
        self._remote.wait_for_masks(sequences)
        self._make_drafts()
        self._copy()
        return self._masks.has_any

    def accept(self, token_ids: list[int]) -> Accepted:
        accepted = self._local.accept(token_ids)
        taking: list[tuple[RemoteSequence, tuple[int, ...]]] = []
        for samples, sequence in self._samples:
            tokens = tuple(token_id for token_id in _sampled(samples, sequence, token_ids) if token_id >= 0)
            if tokens and sequence.failure is None:
                sequence.ahead_region = self._ahead_region(samples.row, sequence) if self._may_draft else -1
                taking.append((sequence, tokens))
                accepted.ends[samples.first + len(tokens) - 1] = None
        self._taking, self._taking_until = [sequence for sequence, _ in taking], self._clock() + WAIT_S
        self._remote.take(taking)
        for samples, sequence in self._samples:
            self._conclude(samples, sequence, accepted)
        return accepted

    def allowed(self, sample: int) -> Tensor | None:
        return self._masks.allowed(sample)

    def _make_drafts(self) -> None:
        """Have the masks behind draft tokens made."""
        first = self._first_draft_region + 1
        drafting = [
            (sequence, first + samples.first, tuple(samples.draft))
            for samples, sequence in self._samples
            if samples.draft and sequence.failure is None and not sequence.use_ahead(samples.draft)
        ]
        self._remote.draft(drafting, self._clock() + DRAFT_WAIT_S)

    def _ahead_region(self, row: int, sequence: RemoteSequence) -> int:
        """Return the first region for the masks behind forced tokens of a row; -1 while those of another one come."""
        other = self._ahead_of.get(row)
        if other is not None and other is not sequence and self._remote.is_awaited(other):
            return -1
        self._ahead_of[row] = sequence
        return self._first_ahead_region + MAX_AHEAD * (row - 1)

    def _copy(self) -> None:
        """Copy the masks of the samples from the shared memory."""
        targets: list[int] = []
        regions: list[int] = []
        for samples, sequence in self._samples:
            if sequence.failure is not None:
                self._masks.write(samples.first, None)
                continue
            count = sequence.drafted.count if samples.draft and sequence.drafted is not None else 0
            targets += range(samples.first, samples.first + 1 + count)
            regions += [sequence.region, *range(sequence.draft_region, sequence.draft_region + count)]
        if targets:
            self._masks.words[targets] = self._remote.masks()[regions]
            for sample in targets:
                self._masks.mark(sample)

    def _conclude(self, samples: RowSamples, sequence: RemoteSequence, accepted: Accepted) -> None:
        """Note how a sequence goes on, as far as it is known; a failure behind its tokens is for the next step."""
        sampled = _sampled(samples, sequence, accepted.token_ids)
        last = samples.first + len(sampled) - 1
        if sampled[-1] == NO_ALLOWED_TOKEN:
            sequence.failure = sequence.failure or NOTHING_LEFT
            accepted.failures[sequence.id] = sequence.failure
        elif _is_complete(samples, sequence, sampled):
            accepted.ends[last] = True
        elif samples.draft and sequence.drafted is None:
            accepted.token_ids[last + 1] = NOT_SAMPLED


def _sampled(samples: RowSamples, sequence: RemoteSequence, token_ids: Sequence[int]) -> list[int]:
    """Return the tokens sampled for a sequence while they equal the draft, and the next one, which may be no token.

    Nothing counts that was sampled without the masks behind draft tokens, nor what is behind the end of the answer.
    """
    if not samples.draft or sequence.drafted is None:
        return [token_ids[samples.first]]
    found: list[int] = []
    for index, draft in enumerate([*samples.draft, NO_TOKEN], samples.first):
        found.append(token_ids[index])
        if token_ids[index] != draft or _is_complete(samples, sequence, found):
            break
    return found


def _is_complete(samples: RowSamples, sequence: RemoteSequence, sampled: Sequence[int]) -> bool:
    """Return whether what was sampled is known to be the end of the answer: all of it equals the draft."""
    drafted = sequence.drafted
    if not samples.draft or drafted is None or not drafted.is_complete or len(sampled) <= drafted.count:
        return False
    return list(sampled) == samples.draft[: drafted.count + 1]


def _awaited_until(sequence: RemoteSequence) -> float:
    return sequence.asked_at + (WAIT_S if sequence.has_row else START_WAIT_S)
