"""Grammars that requests lease, and others as long as there is room: which are kept, and for whom.

A leased grammar is never dropped. A single account may lease all that there is room for. If nothing can be dropped for
a further grammar, an account may still lease an equal share of the room. So at most the room times the harmonic number
of the accounts is leased.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from app.contract.errors import GrammarTooCostly, InvalidValue, Overloaded
from app.contract.grammar import Grammar
from app.text.grammar.compiled import CompiledGrammar
from app.text.grammar.grammar_sizes import compiled_bytes, rejected_bytes


class Rejection(NamedTuple):
    """Why a grammar is rejected, and the field that the reason names; None if it names none.

    With `is_too_costly` its trial has come to a limit.
    """

    message: str
    param: str | None = None
    is_too_costly: bool = False

    def error(self) -> InvalidValue:
        """Return the error that says so."""
        kind = GrammarTooCostly if self.is_too_costly else InvalidValue
        return kind(self.message, param=self.param)


@dataclass(slots=True, eq=False)
class Entry:
    """A compiled grammar, or one that was tried, or why it was rejected; none of them while it is compiled."""

    num_bytes: int
    lock: threading.Lock
    compiled: CompiledGrammar | None = None
    plain: Grammar | None = None  # of a grammar whose trial was good
    compile_s: float = 0.0  # what that took
    rejection: Rejection | None = None
    leases: Counter[str] = field(default_factory=Counter)  # by account

    @property
    def is_decided(self) -> bool:
        """Whether it is compiled, tried or rejected."""
        return self.compiled is not None or self.plain is not None or self.rejection is not None


class Lease:
    """Keeps one compiled grammar in the cache until it is released. Any thread."""

    def __init__(self, grammar: Grammar, release: Callable[[Grammar], None]) -> None:
        self.grammar = grammar
        self._release: Callable[[Grammar], None] | None = release

    def release(self) -> None:
        """Let the grammar be dropped from the cache. Idempotent."""
        release, self._release = self._release, None
        if release is not None:
            release(self.grammar)


class GrammarEntries:
    """The entries of grammars, which take at most `max_bytes` unless more is leased. Any thread.

    Attributes:
        num_bytes: estimates the memory of the entries.
        by_grammar: the entries, the one used longest ago first.
        lock: held by each method, and by who needs several calls to see the same entries.
    """

    def __init__(self, max_bytes: int) -> None:
        self.num_bytes = 0
        self.lock = threading.RLock()
        self._max_bytes = max_bytes
        self.by_grammar: OrderedDict[Grammar, Entry] = OrderedDict()

    def find(self, grammar: Grammar) -> Entry | None:
        """Return the entry of a grammar; None if there is none."""
        return self.by_grammar.get(grammar)

    def enter(self, grammar: Grammar, account: str, at_least: int = 0) -> Entry:
        """Return the entry of a grammar, with one more lease; drop others that no request needs.

        A new one takes `at_least` so many bytes.

        Raises:
            Overloaded: all grammars are leased, and the account leases its share of them.
        """
        with self.lock:
            entry = self.by_grammar.get(grammar)
            if entry is None:
                num_bytes = max(compiled_bytes(grammar), at_least)
                self._make_room(num_bytes, account)
                entry = self.by_grammar[grammar] = Entry(num_bytes, threading.Lock())
                self.num_bytes += num_bytes
            self.by_grammar.move_to_end(grammar)
            entry.leases[account] += 1
            return entry

    def leave(self, account: str, grammar: Grammar) -> None:
        """Take back one lease of `account`."""
        with self.lock:
            entry = self.by_grammar[grammar]
            entry.leases[account] -= 1
            if not entry.leases[account]:
                del entry.leases[account]
            if not entry.leases and not entry.is_decided:  # an error in the compiler
                self._drop(grammar)

    def reject(self, grammar: Grammar, rejection: Rejection) -> None:
        """Keep why a grammar is rejected that has an entry."""
        with self.lock:
            entry, num_bytes = self.by_grammar[grammar], rejected_bytes(grammar)
            self.num_bytes += num_bytes - entry.num_bytes
            entry.rejection, entry.num_bytes = rejection, num_bytes

    def _make_room(self, num_bytes: int, account: str) -> None:
        for grammar, entry in list(self.by_grammar.items()):
            if self.num_bytes + num_bytes <= self._max_bytes:
                return
            if not entry.leases:
                self._drop(grammar)
        if self.num_bytes + num_bytes <= self._max_bytes:
            return
        leased = Counter({account: 0})  # bytes by account; a grammar counts for each account that leases it
        for entry in self.by_grammar.values():
            leased.update(dict.fromkeys(entry.leases, entry.num_bytes))
        if leased[account] + num_bytes > self._max_bytes // len(leased):
            raise Overloaded("Too many different grammars are in use; try again later.")

    def _drop(self, grammar: Grammar) -> None:
        self.num_bytes -= self.by_grammar.pop(grammar).num_bytes
