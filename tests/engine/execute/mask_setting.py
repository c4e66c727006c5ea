"""Masks that a process makes which a test plays (see scripted_process), and steps over their rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import msgspec

from app.contract.grammar import Constraint, Grammar, GrammarKind
from app.contract.sampling_params import SamplingParams
from app.engine.execute.local_masks import LocalMasks
from app.engine.execute.masks import Accepted, AnswerEnd, MaskBuffers, SampleMasks
from app.engine.execute.worker_masks import WorkerMasks
from app.engine.schedule.row_sampling import RowSampling
from app.engine.schedule.step_plan import Chunk, Chunks, RowStart, SampleRow, StepPlan
from app.text.grammar.cache import GrammarCache
from app.text.grammar.children.fork_client import ForkClient
from app.text.grammar.children.mask_memory import SIGNAL
from app.text.grammar.children.mask_messages import MAX_AHEAD, Setup, Turn
from app.text.grammar.children.mask_workers import MaskWorkers
from app.text.grammar.grammar_entries import Rejection
from app.text.grammar.vocabulary import mask_words
from tests.text.grammar.children.scripted_process import ScriptedChildren, ScriptedProcess

VOCAB, NUM_SAMPLES = 64, 8
WORDS = mask_words(VOCAB)
Play = Callable[[ScriptedProcess, Turn], None]


def grammar(name: str) -> Grammar:
    return Grammar(GrammarKind.REGEX, name)


class Setting:
    """Masks of `num_sequences` regions, and what they say of steps. The clock stands still until a test moves it."""

    def __init__(self, *plays: Play | None, num_sequences: int = 16) -> None:
        self.now = 100.0
        self.ended: list[AnswerEnd] = []
        self.children = ScriptedChildren(*plays)
        self.cache = GrammarCache(is_served=True)
        setup = Setup(1, WORDS, num_sequences + NUM_SAMPLES + MAX_AHEAD * num_sequences, ())
        self.workers = MaskWorkers(lambda: cast(ForkClient, self.children), setup)
        samples = SampleMasks(MaskBuffers.allocate(NUM_SAMPLES, VOCAB), VOCAB)
        local = LocalMasks(self.cache, samples, (), 1)
        self.masks = WorkerMasks(self.workers, local, samples, self.cache, num_sequences, lambda: self.now)

    @property
    def process(self) -> ScriptedProcess:
        """The one that runs."""
        return self.children.processes[-1]

    def start(
        self,
        row: int,
        sequence_id: int | None = None,
        output: tuple[int, ...] = (),
        *,
        text: str | None = None,
        account: str | None = None,
        max_tokens: int | None = None,
    ) -> None:
        """Begin a sequence in a row; its grammar and its account are its own unless they are given."""
        number = row if sequence_id is None else sequence_id
        wanted = Constraint(grammar(text or f"g{number}"))
        sampling = RowSampling.of(SamplingParams(max_tokens=max_tokens), wanted, account or f"account {number}")
        self.masks.start(RowStart(row, number, 0, sampling, (5,), output))

    def begin(self, *rows: int) -> None:
        """Begin a sequence in each row, whose grammar is known as one whose trial was good, and make their masks."""
        for row in rows:
            self.accept_grammar(row)
            self.start(row)
        self.fill(*rows)

    def fill(self, *rows: int, drafts: dict[int, list[int]] | None = None) -> None:
        """Make the masks of a step over rows, whose sequences have the rows' ids."""
        drafts = drafts or {}
        chunks = [Chunk(row, row, 0, (9, *drafts.get(row, ()))) for row in rows]
        sampled = [SampleRow(row, row) for row in rows for _ in range(1 + len(drafts.get(row, ())))]
        self.masks.fill(StepPlan(1, Chunks.of(chunks), tuple(range(len(sampled))), tuple(sampled)))

    def fill_ids(self, *sequences: tuple[int, int], num_prompt_tokens: int = 0) -> None:
        """Make the masks of a step over rows, each with the id of its sequence."""
        chunks = [Chunk(row, number, 0, (9,)) for row, number in sequences]
        sampled = tuple(SampleRow(row, number) for row, number in sequences)
        counts = tuple(range(len(sampled)))
        self.masks.fill(StepPlan(1, Chunks.of(chunks), counts, sampled, num_prompt_tokens=num_prompt_tokens))

    def step(self, *rows: int, token: int = 3) -> Accepted:
        """Compute a step in which each row samples the same token."""
        self.fill(*rows)
        return self.accept([token] * len(rows))

    def accept(self, token_ids: list[int]) -> Accepted:
        """Let the sequences of the step take their tokens, as the engine does; `ended` has the ends that are known."""
        accepted = self.masks.accept(token_ids)
        self.ended += self.masks.take_ends()
        return accepted

    def failures(self) -> dict[int, str]:
        """Why sequences cannot go on, by their ids."""
        sequences = self.masks._remote._sequences.values()
        return {each.id: each.failure for each in sequences if each.failure is not None}

    def late(self) -> set[str]:
        """The grammars that are late."""
        return {self.masks._remote._sequences[each].grammar.source for each in self.masks.late()}

    def number(self, sequence_id: int) -> int:
        """What the process knows a sequence by."""
        return self.masks._remote._sequences[sequence_id].number

    def note(self, culprit: int = 0, *suspects: int, end: int = 0) -> None:
        """Note who is worked on, as the process does, and the signal that ends it."""
        assert self.workers.memory is not None
        self.workers.memory.notes[SIGNAL] = end
        self.workers.memory.notes[0] = culprit
        for index, number in enumerate(suspects, 1):
            self.workers.memory.notes[index] = number

    def accept_grammar(self, sequence_id: int) -> None:
        """Let the grammar of a sequence be known as one whose trial was good."""
        text = grammar(f"g{sequence_id}")
        self.cache.accept(text, text).release()

    def rejection(self, sequence_id: int) -> Rejection | None:
        entry = self.cache.entries.find(grammar(f"g{sequence_id}"))
        assert entry is not None
        return entry.rejection

    def close(self) -> None:
        """End the process."""
        self.workers.close()
        self.children.close()


def silent(setting: Setting, kind: str) -> Play:
    """A process that does not answer one kind of message before the time is over that a step waits."""

    def play(process: ScriptedProcess, turn: Turn) -> None:
        process.answer(msgspec.structs.replace(turn, **{kind: ()}))
        if getattr(turn, kind):
            setting.now += 1.0

    return play


def holding(numbers: set[int]) -> Play:
    """A process that finds no masks of some sequences."""

    def play(process: ScriptedProcess, turn: Turn) -> None:
        process.holds |= numbers
        process.answer(turn)

    return play
