"""The compiled grammars that the process of masks keeps for sequences that begin with them."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING

from app.contract.grammar import Grammar
from app.runtime.clock import Clock, monotonic
from app.runtime.gc_tuning import trim_heap
from app.runtime.process_limits import resident_bytes
from app.text.grammar.children.mask_jobs import Lexer
from app.text.grammar.grammar_sizes import MAX_BYTES

if TYPE_CHECKING:
    from llguidance import LLMatcher

LOOK_S, MAX_GROWTH_BYTES = 20.0, 48 * 2**20


class KeptGrammars:
    """Those that sequences have begun with last, as far as there is room. Any thread."""

    def __init__(self, clock: Clock = monotonic, memory_bytes: Callable[[], int] = resident_bytes) -> None:
        self._clock, self._memory_bytes = clock, memory_bytes
        self._look_at, self._first_bytes = clock() + LOOK_S, memory_bytes()
        self._lock = threading.Lock()
        self._prototypes: OrderedDict[Grammar, tuple[LLMatcher, int]] = OrderedDict()  # with its bytes
        self._lexers: dict[Grammar, Lexer] = {}
        self._num_bytes = 0

    def lexer(self, grammar: Grammar) -> Lexer:
        """Return what the sequences with a grammar share."""
        with self._lock:
            return self._lexers.setdefault(grammar, Lexer())

    def get(self, grammar: Grammar) -> LLMatcher | None:
        """Return a compiled grammar that is kept, from now on longer than all others; None if it is not kept."""
        with self._lock:
            if grammar not in self._prototypes:
                return None
            self._prototypes.move_to_end(grammar)
            return self._prototypes[grammar][0]

    def keep(self, grammar: Grammar, prototype: LLMatcher, num_bytes: int) -> None:
        """Keep a compiled grammar; drop those that no sequence has begun with for longest. A sequence keeps its own."""
        with self._lock:
            self._prototypes[grammar] = prototype, num_bytes
            self._num_bytes += num_bytes
            while self._num_bytes > MAX_BYTES and len(self._prototypes) > 1:
                oldest, (_, num_bytes) = self._prototypes.popitem(last=False)
                self._lexers.pop(oldest, None)
                self._num_bytes -= num_bytes

    def drop_grown(self) -> None:
        """Drop all, every LOOK_S seconds, if the process has grown by more than MAX_GROWTH_BYTES since it began.

        Matching lets grammars grow beyond what they took when they were compiled, which takes little. Called often.
        """
        if (now := self._clock()) < self._look_at:
            return
        self._look_at = now + LOOK_S
        if self._memory_bytes() - self._first_bytes <= MAX_GROWTH_BYTES:
            return
        with self._lock:
            self._prototypes.clear()
            self._lexers.clear()
            self._num_bytes = 0
        trim_heap()
