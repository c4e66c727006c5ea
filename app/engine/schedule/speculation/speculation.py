"""N-gram speculation: several tokens of an answer from one step.

A sequence whose text repeats itself guesses its next tokens (see `ngram`) and computes them along with its last known
one. Draws are keyed by position, so what is drawn after each of them is the token that would be drawn there anyway, if
all before it are right. The draws are taken while they equal the guess, and the first one that differs is taken too:
the answer is the same as without guesses, bit by bit. The rules:

1. A guess is what is left over. Steps with prompt chunks have none; it stays within the step's tokens, its rows of
   logits and its time; it takes blocks only while nobody waits for any, and never makes a victim.
2. It is expected to pay: the tokens it will probably gain, at what a token costs at present, are worth more than the
   seconds it adds to the step (see `guesser`), and more than the steps that run ahead without the sequence. Now and
   then one is tried even so: steps without prompts are all alike, and only guesses tell what guesses cost.
3. It counts for nothing before its step is done. What was right then becomes tokens of the answer, computed ones too;
   the slots of the rest are written anew. A sequence whose guess is in flight waits for it, whatever runs ahead.
4. Who has a step in flight does not guess, for its last token is not known. Beams never do: a search needs all beams'
   draws before anybody's next token is chosen. While a fault is looked into nobody does, and who had guessed when a
   step failed is quiet for a while.
5. What ends an answer is never guessed. Tokens that come with the end of a stop string are dropped with their sequence.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Sequence as Many

from app.engine.schedule.kv.block_tables import BlockTables
from app.engine.schedule.limits import SchedulerLimits
from app.engine.schedule.queues import SequenceQueues
from app.engine.schedule.sequence import Sequence
from app.engine.schedule.speculation.ngram import NgramIndex
from app.engine.schedule.speculation.proposer import Proposer
from app.engine.schedule.step_budget import StepBudget
from app.engine.schedule.step_builder import StepPlanBuilder
from app.engine.schedule.step_cost import StepCost
from app.engine.schedule.step_plan import Sample

# What one more guessed token costs, in gained tokens, while nobody knows.
FIRST_PRICE = 0.3
# After so many steps without a guess one may be made at this price.
TRY_INTERVAL = 128
TRY_PRICE = 0.1
# A guessed token needs logits and a draw; the tokens of prompts, from which the cost of steps is learned, do not.
LOGITS_SHARE = 1.25


class Speculation:
    """Adds guesses to steps and takes in what came of them. Engine thread only.

    It counts the guesses of steps that are done, their tokens, and those of them that were right.
    """

    def __init__(
        self,
        limits: SchedulerLimits,
        queues: SequenceQueues,
        tables: BlockTables,
        budget: StepBudget,
        eos_token_ids: Collection[int] = (),
    ) -> None:
        self.num_guesses = 0
        self.num_guessed_tokens = 0
        self.num_right_tokens = 0
        self._next_try = TRY_INTERVAL  # a step
        self._limits = limits
        self._queues = queues
        self._tables = tables
        self._budget = budget
        self._eos_token_ids = frozenset(eos_token_ids)

    # --- Before a step ----------------------------------------------------------------------------------------------

    def guess(self, builder: StepPlanBuilder) -> None:
        """Add guesses to `builder`, which has all else that its step computes, and no chunk of a prompt."""
        rate = _Rate(builder, self._budget.cost)
        num_rows = self._limits.max_logit_rows - len(builder.drawing)
        for place, sequence in enumerate(builder.sequences):
            end = sequence.num_scheduled
            if end != sequence.num_prompt + len(sequence.output_token_ids) or sequence.group.search is not None:
                continue
            guesser = sequence.guesser or self._begin(sequence)
            price = rate.price(end)
            if builder.step >= self._next_try:
                price = min(price, TRY_PRICE)
            most = min(self._limits.speculative_ngram, num_rows, builder.num_left, sequence.max_slots - end)
            length = guesser.length(price, most, sequence.num_tokens)
            if not length or guesser.gain(length) <= self._limits.run_ahead:
                continue
            found = guesser.guess(length)
            if found and (length := self._room_for(sequence, len(found), builder)):
                builder.guess(place, found[:length])
                self._next_try = builder.step + TRY_INTERVAL
                rate.add(guesser.gain(length), length * price)
                num_rows -= length

    def _begin(self, sequence: Sequence) -> Proposer:
        params = sequence.group.request.params
        ends = frozenset(params.stop_token_ids or ())
        if not params.ignore_eos:
            ends |= self._eos_token_ids
        index = NgramIndex(sequence.prompt_token_ids, sequence.output_token_ids)
        guesser = sequence.guesser = Proposer(index, ends)
        return guesser

    def _room_for(self, sequence: Sequence, count: int, builder: StepPlanBuilder) -> int:
        """How many of `count` guessed tokens there is time for, and slots that are the sequence's alone."""
        tables, start = self._tables, sequence.num_scheduled
        count = self._budget.chunk(count, start, builder.num_tokens, builder.num_attended, self._budget.target_s)
        if len(sequence.group.open) > 1:
            count = min(count, self._num_own(sequence, start + count) - start)
        missing = tables.num_missing(sequence, start + count)
        if count <= 0 or missing <= 0:
            return max(count, 0)
        pool, queues = tables.pool, self._queues
        # Everybody's next block comes first.
        if queues.next_to_start is None and pool.can_allocate(missing + queues.num_seats):
            builder.append_blocks(sequence, tables.append(sequence, missing))
            return count
        return min(count, len(sequence.block_table) * tables.block_size - start)

    def _num_own(self, sequence: Sequence, num_slots: int) -> int:
        """How many of the first `num_slots` slots of a sequence come before the next block that others name, too."""
        size, table = self._tables.block_size, sequence.block_table
        for index in range(sequence.num_scheduled // size, min(len(table), -(-num_slots // size))):
            if self._tables.pool.num_references(table[index]) > 1:
                return index * size
        return num_slots

    # --- After a step -----------------------------------------------------------------------------------------------

    def settle(
        self, builder: StepPlanBuilder, counts: Many[int], samples: Many[Sample]
    ) -> tuple[list[int], list[tuple[Sequence, Sample]]]:
        """Return the token counts of a step's chunks without wrong guesses, and the draws without those after them.

        The sequences that guessed count what they gained; their new tokens are the caller's to append.
        """
        kept, drawn, first = list(counts), list[tuple[Sequence, Sample]](), 0
        while first < len(samples):
            sequence = builder.drawing[first]
            guess = builder.guesses.get(sequence.id)
            if guess is None:
                drawn.append((sequence, samples[first]))
                first += 1
                continue
            own = samples[first : first + 1 + len(guess.token_ids)]
            first += len(own)
            if sequence.is_finished:
                continue
            num_right = _num_equal(guess.token_ids, own)
            drawn += [(sequence, sample) for sample in own[: num_right + 1]]
            kept[guess.place] = num_right + 1
            self._count(sequence, len(guess.token_ids), num_right)
        return kept, drawn

    def give_up(self, builder: StepPlanBuilder) -> None:
        """The step of `builder` failed: who guessed in it does not try that again soon."""
        for guess in builder.guesses.values():
            sequence = builder.sequences[guess.place]
            if sequence.guesser is not None:
                sequence.guesser.be_quiet(sequence.num_tokens)

    def _count(self, sequence: Sequence, length: int, num_right: int) -> None:
        sequence.accept(num_right)
        assert sequence.guesser is not None
        sequence.guesser.learn(length, num_right, sequence.num_tokens)
        self.num_guesses += 1
        self.num_guessed_tokens += length
        self.num_right_tokens += num_right


class _Rate:
    """What a step is expected to gain in how many seconds, while guesses are added to it."""

    __slots__ = ("_cost", "_gain", "_num_attended", "_num_tokens", "_planned_s", "_seconds")

    def __init__(self, builder: StepPlanBuilder, cost: StepCost) -> None:
        self._cost = cost
        self._num_tokens = builder.num_tokens
        self._num_attended = builder.num_attended
        self._gain = float(len(builder.drawing))
        self._planned_s = self._seconds = (
            cost.predict(builder.num_tokens, builder.num_attended) if cost.is_known else 0.0
        )

    def price(self, start: int) -> float:
        """What one more token, at position `start`, costs, in gained tokens at the present rate."""
        if self._seconds <= 0.0:
            return FIRST_PRICE
        added_s = self._cost.predict(self._num_tokens + 1, self._num_attended + start + 1) - self._planned_s
        return LOGITS_SHARE * added_s * self._gain / self._seconds

    def add(self, gain: float, price: float) -> None:
        """Add a guess that will probably gain so many tokens, and costs `price`, all its tokens together."""
        self._seconds *= 1.0 + price / self._gain
        self._gain += gain


def _num_equal(guess: Many[int], samples: Many[Sample]) -> int:
    """How many tokens, from the first on, are the same."""
    count = 0
    for token_id, sample in zip(guess, samples, strict=False):
        if sample.token_id != token_id:
            break
        count += 1
    return count
