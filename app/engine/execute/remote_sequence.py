"""One sequence with a grammar as the process that finds masks knows it."""

from __future__ import annotations

from dataclasses import dataclass

from app.contract.grammar import Constraint, Grammar
from app.text.grammar.children.mask_messages import Drafted


@dataclass(slots=True, eq=False)
class RemoteSequence:
    """A sequence with a grammar: what the other process knows of it, and has found.

    `tokens` are those that it has taken, of `max_tokens` that it may have.
    """

    number: int  # what the other process knows it by: a sequence that begins again is another one there
    id: int
    account: str
    grammar: Grammar  # as the request has it
    constraint: Constraint  # as the other process gets it
    tokens: list[int]
    max_tokens: int | None
    region: int = -1
    has_row: bool = False
    is_begun: bool = False  # the process that runs was told of it
    has_answered: bool = False  # and has found what follows its tokens
    is_ready: bool = False
    is_slow: bool = False
    asked_at: float = 0.0
    forced: tuple[int, ...] = ()
    failure: str | None = None
    drafted: Drafted | None = None  # of the last step with draft tokens

    @property
    def is_settled(self) -> bool:
        """Whether its mask is there, or none will be."""
        return self.is_ready or self.failure is not None
