"""The compiled grammars that the process of masks keeps for sequences that begin with them."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from math import inf
from weakref import WeakSet

from app.contract.grammar import Grammar
from app.runtime.clock import Clock, monotonic
from app.runtime.gc_tuning import trim_heap
from app.runtime.process_memory import resident_bytes
from app.text.grammar.children.shared_lexer import SharedLexer
from app.text.grammar.compiled import MAX_AGAIN
from app.text.grammar.grammar_sizes import MAX_BYTES

LOOK_S = 10.0
MAX_GROWTH_BYTES = 32 * 2**20
"""Of the process since it began, without what is free in it."""
MAX_SPENT = 2
"""A sequence that has spent so many lexers begins again with one of its own, and does not end others' any more."""
MAX_OWN = 4
"""Lexers of that kind at the same time, of 20 MB and more each; beyond them sequences share."""


class KeptGrammars:
    """Those that sequences have begun with last, as far as there is room. Any thread."""

    def __init__(self, clock: Clock = monotonic, memory_bytes: Callable[[], int] = resident_bytes) -> None:
        self._clock, self._memory_bytes = clock, memory_bytes
        self._look_at, self._first_bytes = clock() + LOOK_S, memory_bytes()
        self._lock = threading.Lock()
        self._lexers: OrderedDict[Grammar, tuple[SharedLexer, int]] = OrderedDict()  # with the bytes of compiled ones
        self._num_bytes = 0
        self._own: WeakSet[SharedLexer] = WeakSet()  # while their sequences have them

    def lexer(self, grammar: Grammar) -> SharedLexer:
        """Return the lexer that a new sequence shares with others; it is kept longest from now on."""
        with self._lock:
            return self._shared(grammar)

    def lexer_again(self, grammar: Grammar, num_spent: int) -> SharedLexer:
        """Return the lexer for a sequence that begins again, and has spent so many."""
        with self._lock:
            if num_spent >= MAX_SPENT and len(self._own) < MAX_OWN:
                self._own.add(own := SharedLexer(is_again=True))
                return own
            lexer = self._shared(grammar, max_again=MAX_AGAIN)
            lexer.is_again = lexer.is_again or lexer.compiled is None
            lexer.num_again += 1
            return lexer

    def _shared(self, grammar: Grammar, max_again: float = inf) -> SharedLexer:
        lexer, num_bytes = self._lexers.pop(grammar, (SharedLexer(), 0))
        if lexer.is_spent or lexer.num_again >= max_again:
            self._num_bytes -= num_bytes
            lexer, num_bytes = SharedLexer(is_again=True), 0
        self._lexers[grammar] = lexer, num_bytes
        return lexer

    def keep(self, grammar: Grammar, lexer: SharedLexer, num_bytes: int) -> None:
        """Note what a compiled one takes; drop those that no sequence has begun with for longest, and not the last.

        A sequence keeps its own. One that is not kept any more is ignored.
        """
        with self._lock:
            if not self._is_kept(grammar, lexer):
                return
            self._lexers[grammar] = lexer, num_bytes
            self._num_bytes += num_bytes
            while self._num_bytes > MAX_BYTES and len(self._lexers) > 1:
                _, (_, num_bytes) = self._lexers.popitem(last=False)
                self._num_bytes -= num_bytes

    def drop(self, grammar: Grammar, lexer: SharedLexer) -> None:
        """Do not keep one that was not compiled."""
        with self._lock:
            if self._is_kept(grammar, lexer):
                del self._lexers[grammar]

    def _is_kept(self, grammar: Grammar, lexer: SharedLexer) -> bool:
        return self._lexers.get(grammar, (None, 0))[0] is lexer

    def shrink(self) -> bool:
        """Give free memory back every LOOK_S seconds, and drop all grammars beyond MAX_GROWTH_BYTES. Called often.

        Return whether that has not helped: pages of the heap that hold next to nothing stay. False between two looks.

        Matching lets grammars grow beyond what they took when they were compiled, which takes little. Matchers live as
        long as answers and are freed between what lexers keep: the heap would have the size of its busiest moment.
        """
        if (now := self._clock()) < self._look_at:
            return False
        self._look_at = now + LOOK_S
        trim_heap()
        if self._growth() > MAX_GROWTH_BYTES:
            with self._lock:
                self._lexers.clear()
                self._num_bytes = 0
            trim_heap()
        return self._growth() > MAX_GROWTH_BYTES

    def _growth(self) -> int:
        return self._memory_bytes() - self._first_bytes
