"""One sequence in the process that finds masks, with what is to be done for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from app.contract.grammar import Grammar
from app.text.grammar.children.mask_messages import Start
from app.text.grammar.row_mask import RowMask

if TYPE_CHECKING:
    from app.text.grammar.children.shared_lexer import SharedLexer

UNKNOWN_S = 0.001
"""What the first job of a sequence is expected to take."""


class Row:
    """One sequence: its constraint, where its mask goes, what its last job took, and those that are not done.

    It begins by taking its tokens and doing `job`; the jobs in `behind` follow. So it does, too, when it begins again.
    """

    __slots__ = (
        "account", "ahead", "behind", "cost_s", "is_begun", "is_ended", "is_new", "is_stale", "job",
        "lexer", "mask", "num_jobs", "num_rounds", "num_spent", "num_taken", "num_tokens", "region", "start",
    )  # fmt: skip

    def __init__(self, start: Start, lexer: SharedLexer, job: Job) -> None:
        self.start = start
        self.lexer = lexer
        self.job = job
        self.region = start.region
        self.ahead = -1
        self.account = start.account
        self.num_tokens = len(start.token_ids)
        self.num_taken = 0  # of the tokens that it is to take now
        self.mask: RowMask | None = None  # until it has begun
        self.num_jobs = 0
        self.num_spent = 0  # lexers that it has brought to their end
        self.num_rounds = 0  # those of them since it has taken its last token
        self.is_begun = False
        self.is_new = False  # while it begins: it has done nothing else with its lexer
        self.is_stale = False  # it must begin again before it does anything else
        self.behind: list[Job] = []
        self.cost_s = UNKNOWN_S
        self.is_ended = False

    @property
    def grammar(self) -> Grammar:
        """The grammar that its tokens must satisfy."""
        grammar = self.start.constraint.grammar
        assert grammar is not None
        return grammar

    @property
    def token_ids(self) -> Sequence[int]:
        """The tokens that it has, with those that it was just to take."""
        return self.start.token_ids if self.mask is None else self.mask.token_ids


Job = Callable[["Row"], "Job | None"]
"""A job returns None when it is done, or what is left to do when its sequence has begun again."""
