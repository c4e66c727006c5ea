"""What one sequence may sample next: its place in its grammar, and in its reasoning.

    OUTSIDE ──open mark──▶ THINKING ──close mark──▶ ANSWERING        any other token: OUTSIDE ──▶ ANSWERING

A sequence with a grammar begins OUTSIDE if it may reason first: its mask is the grammar's, and the opening mark. While
it is THINKING every token is allowed but those that end the answer, and from its budget on the closing mark alone.
ANSWERING, the grammar's tokens are allowed, until it is complete. A sequence without a grammar has only a budget, which
counts for all its blocks: it returns OUTSIDE. The state follows from the tokens alone, so a sequence that starts again
finds it from its ids.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from app.contract.grammar import Constraint
from app.text.grammar.number_digits import NumberDigits

if TYPE_CHECKING:
    from llguidance import LLMatcher


class Phase(Enum):
    """Where a sequence stands."""

    OUTSIDE = 0
    THINKING = 1
    ANSWERING = 2


class Place(NamedTuple):
    """A phase, and how many tokens have been reasoned so far, marks not counted."""

    phase: Phase
    num_thought: int = 0


class Gate:
    """The phases of a sequence under a constraint. One thread at a time."""

    def __init__(self, constraint: Constraint) -> None:
        self.marks = constraint.reasoning
        self._budget = constraint.thinking_token_budget
        self._after_block = Phase.OUTSIDE if constraint.grammar is None else Phase.ANSWERING
        first = Phase.OUTSIDE if self.marks is not None else Phase.ANSWERING
        if self.marks is not None and self.marks.is_inside:
            first = Phase.THINKING
        self.first = Place(first)

    def after(self, place: Place, token_id: int) -> Place:
        """Return the place after a token."""
        phase, num_thought = place
        if self.marks is None or phase is Phase.ANSWERING:
            return place
        if phase is Phase.THINKING:
            return (
                Place(self._after_block, num_thought)
                if token_id == self.marks.close_id
                else Place(phase, num_thought + 1)
            )
        return Place(Phase.THINKING if token_id == self.marks.open_id else self._after_block, num_thought)

    def must_close(self, place: Place) -> bool:
        """Return whether only the closing mark may come next."""
        return place.phase is Phase.THINKING and self._budget is not None and place.num_thought >= self._budget


class RowMask:
    """The state of one sequence's constraint; with `digits` the numbers of JSON end. One thread at a time.

    Attributes:
        constraint: what limits it.
        token_ids: the tokens that it has.
        matcher: its place in the grammar; None without one.
        failure: why the sequence cannot go on; None while it can.
        end: the end of its text in the grammar.
    """

    def __init__(
        self,
        constraint: Constraint,
        matcher: LLMatcher | None,
        output_token_ids: Sequence[int],
        digits: NumberDigits | None = None,
    ) -> None:
        self.constraint = constraint
        self.token_ids: list[int] = []
        self.gate = Gate(constraint)
        self.matcher = matcher
        self.place = self.gate.first
        self.failure: str | None = None
        self.end = b""
        self._digits = digits if constraint.grammar is not None and constraint.grammar.has_json else None
        self._forced: deque[int] = deque()  # what the library has said must come next
        replay = Replay(self)
        for token_id in output_token_ids:
            replay.take(token_id)

    def take(self, token_id: int) -> None:
        """Note the next token of the sequence."""
        self.token_ids.append(token_id)
        is_thinking = self.place.phase is Phase.THINKING
        self.place = self.gate.after(self.place, token_id)
        if self.matcher is not None and not is_thinking and self.place.phase is Phase.ANSWERING:
            self.matcher.consume_token(token_id)
            self.end = self.behind(self.end, token_id)
            if self._forced and self._forced.popleft() != token_id:
                self._forced.clear()

    def behind(self, end: bytes, token_id: int) -> bytes:
        """Return the end of a text in the grammar behind one more token."""
        return end if self._digits is None else self._digits.behind(end, token_id)

    def limit(self, mask: memoryview, end: bytes) -> None:
        """Take out of a mask of the grammar, of 32-bit words, what would not end: `end` is the text before it."""
        if self._digits is not None:
            self._digits.limit(mask, end)

    def forced(self) -> Sequence[int]:
        """Return the tokens that must come next, whatever the model says; empty where it has a choice."""
        if self.failure is not None:
            return ()
        if self.place.phase is Phase.THINKING:
            return (self.gate.marks.close_id,) if self.gate.marks and self.gate.must_close(self.place) else ()
        may_think = self.place.phase is Phase.OUTSIDE and self.gate.marks is not None
        if may_think or self.matcher is None:
            return ()
        if not self._forced:
            self._forced.extend(self.matcher.compute_ff_tokens())
        return tuple(self._forced)

    @property
    def is_broken(self) -> bool:
        """Whether its matcher is in error, and it has not failed for that."""
        return self.matcher is not None and self.failure is None and self.matcher.is_error()

    @property
    def is_complete(self) -> bool:
        """Whether the answer ends here, because its grammar allows nothing more."""
        return self.matcher is not None and self.matcher.is_stopped() and not self.matcher.is_error()


class Replay:
    """Lets a sequence take tokens again, one after the other, without their masks.

    The library allows a lexer only so much work from one mask to the next, and all of these tokens may need more. So a
    mask comes before each of them: again and again that of one place, whose states are known after the first time. It
    is a place where nothing is forced, whose mask needs no lexer, and not the first one, whose mask is remembered.
    """

    def __init__(self, mask: RowMask) -> None:
        self._mask = mask
        self._place: LLMatcher | None = None
        self._has_taken = False

    def take(self, token_id: int) -> None:
        """Take the next token."""
        mask = self._mask
        if (
            self._has_taken
            and self._place is None
            and mask.matcher is not None
            and not mask.matcher.compute_ff_tokens()
        ):
            self._place = mask.matcher.deep_copy()
        if self._place is not None:
            self._place.deep_copy().compute_bitmask()
        mask.take(token_id)
        self._has_taken = self._has_taken or mask.place.phase is Phase.ANSWERING
