"""One sequence with a grammar as the process that finds masks knows it."""

from __future__ import annotations

from collections.abc import Sequence
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
    is_known: bool = False  # some process was to be told of it
    is_begun: bool = False  # the process that runs was told of it
    has_answered: bool = False  # and has found what follows its tokens
    is_ready: bool = False
    is_slow: bool = False
    asked_at: float = 0.0
    forced: tuple[int, ...] = ()
    failure: str | None = None
    is_complete: bool = False  # its grammar ends with its tokens
    ahead: Drafted | None = None  # masks behind forced tokens, from `ahead_region` on
    ahead_region: int = -1
    drafted: Drafted | None = None  # masks behind the draft tokens of the last step, from `draft_region` on
    draft_region: int = -1

    @property
    def is_settled(self) -> bool:
        """Whether its mask is there, or none will be."""
        return self.is_ready or self.failure is not None

    @property
    def has_all(self) -> bool:
        """Whether it has as many tokens as it may have: its answer has ended, and its grammar says how."""
        return self.max_tokens is not None and len(self.tokens) >= self.max_tokens

    @property
    def needs_region(self) -> bool:
        """Whether a mask can be made for it as soon as there is a place for it."""
        return self.region < 0 and self.failure is None

    def use_ahead(self, token_ids: Sequence[int]) -> bool:
        """Take the masks behind forced tokens for those behind draft tokens; False if they are others."""
        ahead, count = self.ahead, len(token_ids)
        if ahead is None or list(self.forced[:count]) != list(token_ids):
            return False
        self.drafted = Drafted(self.number, min(ahead.count, count), ahead.is_complete and ahead.count < count)
        self.draft_region = self.ahead_region
        return True
