"""A grammar as the process that finds masks shares it among sequences, from before it is compiled to its end.

new ──a sequence begins──▶ queued ──▶ compiled ──a matcher comes to a limit──▶ spent
                             └──▶ refused
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from app.text.grammar.compiled import CompiledGrammar

if TYPE_CHECKING:
    from app.text.grammar.children.worker_row import Job, Row


class SharedLexer:
    """The lexer of all sequences with one grammar, as the library's copies share it: one thread may use it at a time.

    Any other one would wait inside of the library, and keep the interpreter's lock meanwhile. The first sequence that
    begins has it compiled, once, for all that wait. A spent one is replaced: its sequences begin again with another one
    (see text/grammar/compiled). Jobs owns it, and KeptGrammars `is_again` and `num_again`; `compiled` and `refusal` are
    set once, and read by any thread.

    Attributes:
        compiled, refusal: the grammar, or why there is none; neither until a thread has compiled it.
        is_again: whether it is for sequences that begin again, which is said before it is compiled.
        num_again: how many sequences were to begin again with it.
        is_queued: whether a thread has been told to compile it.
        is_busy: whether some thread uses it.
        jobs: what is to be done with it, in this order.
    """

    __slots__ = ("__weakref__", "compiled", "is_again", "is_busy", "is_queued", "jobs", "num_again", "refusal")

    def __init__(self, *, is_again: bool = False, refusal: str | None = None) -> None:
        self.compiled: CompiledGrammar | None = None
        self.refusal = refusal
        self.is_again = is_again
        self.num_again = 0
        self.is_queued = False
        self.is_busy = False
        self.jobs: deque[tuple[Row, Job]] = deque()

    @property
    def is_settled(self) -> bool:
        """Whether its sequences can begin, if only to fail."""
        return self.compiled is not None or self.refusal is not None

    @property
    def is_spent(self) -> bool:
        """Whether no sequence can go on with it."""
        return self.compiled is not None and self.compiled.is_spent
