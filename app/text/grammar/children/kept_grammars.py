"""The compiled grammars that the process of masks keeps for sequences that begin with them."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable

from app.contract.grammar import Grammar
from app.runtime.clock import Clock, monotonic
from app.runtime.gc_tuning import trim_heap
from app.runtime.process_limits import resident_bytes
from app.text.grammar.children.mask_jobs import Lexer
from app.text.grammar.compiled import MAX_AGAIN
from app.text.grammar.grammar_sizes import MAX_BYTES

LOOK_S, MAX_GROWTH_BYTES = 20.0, 48 * 2**20


class KeptGrammars:
    """Those that sequences have begun with last, as far as there is room. Any thread."""

    def __init__(self, clock: Clock = monotonic, memory_bytes: Callable[[], int] = resident_bytes) -> None:
        self._clock, self._memory_bytes = clock, memory_bytes
        self._look_at, self._first_bytes = clock() + LOOK_S, memory_bytes()
        self._lock = threading.RLock()
        self._lexers: OrderedDict[Grammar, tuple[Lexer, int]] = OrderedDict()  # with the bytes of compiled ones
        self._num_bytes = 0

    def lexer(self, grammar: Grammar, *, is_again: bool = False) -> Lexer:
        """Return what a sequence that begins, perhaps again, shares with others; it is kept longest from now on."""
        with self._lock:
            lexer, num_bytes = self._lexers.pop(grammar, (Lexer(), 0))
            if lexer.is_spent or (is_again and lexer.num_again >= MAX_AGAIN):
                self._num_bytes -= num_bytes
                lexer, num_bytes = Lexer(is_again=True), 0
            self._lexers[grammar] = lexer, num_bytes
            lexer.num_again += is_again
            return lexer

    def keep(self, grammar: Grammar, lexer: Lexer, num_bytes: int) -> None:
        """Keep a compiled grammar; drop those that no sequence has begun with for longest. A sequence keeps its own."""
        with self._lock:
            self.drop(grammar)
            self._lexers[grammar] = lexer, num_bytes
            self._num_bytes += num_bytes
            while self._num_bytes > MAX_BYTES and len(self._lexers) > 1:
                _, (_, num_bytes) = self._lexers.popitem(last=False)
                self._num_bytes -= num_bytes

    def drop(self, grammar: Grammar) -> None:
        """Do not keep a grammar any more."""
        with self._lock:
            _, num_bytes = self._lexers.pop(grammar, (None, 0))
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
            self._lexers.clear()
            self._num_bytes = 0
        trim_heap()
