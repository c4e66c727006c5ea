"""Compiled grammars, kept while a request needs them, and afterwards while there is room.

The API compiles before it submits a request, so that the engine thread never does: it holds a `Lease` until the request
has ended, and a leased grammar is never dropped. Rejections are kept too, so that a grammar that is sent again and
again is compiled once, whatever comes of it. A server has each grammar tried by another process first (see
`children/trial.py`), and notes here what became of that.

A single account may lease all that there is room for. If nothing can be dropped for a further grammar, an account may
still lease an equal share of the room. So at most the room times the harmonic number of the accounts is leased.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from app.contract.errors import GrammarTooCostly, InvalidValue, Overloaded, UnsupportedParameter
from app.contract.grammar import Grammar
from app.runtime.clock import monotonic
from app.text.grammar.children.fork_client import ForkClient
from app.text.grammar.compile import compile_grammar
from app.text.grammar.vocabulary import GrammarVocabulary
from app.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher

MAX_BYTES = 64 * 2**20
# About what a compiled grammar takes: measured at 4 to 10 MB for sources of 60 to 140 KB.
ENTRY_BYTES, BYTES_PER_SOURCE_BYTE = 64 * 2**10, 80
# Of a rejected one only the source is kept, which takes up to four bytes for each character.
BYTES_PER_REJECTED_BYTE = 4


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
class _Entry:
    """A compiled grammar, or why it was rejected; neither while it is compiled, under `lock`."""

    num_bytes: int
    lock: threading.Lock
    prototype: LLMatcher | None = None
    rejection: Rejection | None = None
    leases: Counter[str] = field(default_factory=Counter)  # by account

    @property
    def is_decided(self) -> bool:
        """Whether the grammar is compiled or rejected."""
        return self.prototype is not None or self.rejection is not None


class Lease:
    """Keeps one compiled grammar in the cache until it is released or dropped. Any thread."""

    def __init__(self, grammar: Grammar, release: Callable[[Grammar], None]) -> None:
        self.grammar = grammar
        self._release: Callable[[Grammar], None] | None = release

    def release(self) -> None:
        """Let the grammar be dropped from the cache. Idempotent."""
        release, self._release = self._release, None
        if release is not None:
            release(self.grammar)

    def __del__(self) -> None:
        self.release()


class GrammarCache:
    """The compiled grammars of one model. Any thread, but for `matcher`.

    `num_bytes` estimates the memory of the grammars. `failures` counts requests that failed because of a grammar, by
    reason: `refused` before they began, `limit` and `no_token` while they were answered. With `is_served` the grammars
    come from clients; `children`, from `load` on, then forks the processes that try them.
    """

    def __init__(self, max_bytes: int = MAX_BYTES, *, is_served: bool = False) -> None:
        self.num_bytes = 0
        self.failures: Counter[str] = Counter({"refused": 0, "limit": 0, "no_token": 0})
        self.children: ForkClient | None = None
        self._max_bytes = max_bytes
        self._is_served = is_served
        self._vocabulary: GrammarVocabulary | UnsupportedParameter | None = None
        self._entries: OrderedDict[Grammar, _Entry] = OrderedDict()  # the one used longest ago first
        self._compile_s: list[float] = []
        # A lease may be dropped by the garbage collector, on a thread that holds the lock already.
        self._lock = threading.RLock()

    def load(self, tokenizer: Tokenizer, vocab_size: int, eos_token_ids: tuple[int, ...]) -> str | None:
        """Read a model's vocabulary; return why grammars are not supported for it, if they are not. Blocks."""
        try:
            vocabulary = GrammarVocabulary(tokenizer, vocab_size, eos_token_ids)
        except UnsupportedParameter as error:
            self._vocabulary = error
            return error.message
        if self._is_served:
            self.children = ForkClient(tokenizer, vocab_size, eos_token_ids)
        self._vocabulary = vocabulary  # last, because another thread may lease from now on
        return None

    @property
    def is_supported(self) -> bool:
        """Whether the loaded model's tokenizer supports grammars."""
        return isinstance(self._vocabulary, GrammarVocabulary)

    def lease(self, grammar: Grammar, account: str = "", plain: Grammar | None = None) -> Lease:
        """Compile a grammar for `account`, unless it is compiled already, and keep it. Blocks.

        `plain` is the same grammar without GBNF, where that is known.

        Raises:
            InvalidValue: the grammar is rejected; `param` is set only for GBNF.
            UnsupportedParameter: this model's tokenizer supports no grammars.
            Overloaded: all compiled grammars are in use, and the account has its share of them.
        """
        vocabulary = self._vocabulary
        if vocabulary is None:
            raise UnsupportedParameter("No model is loaded that grammars could be compiled for.")
        if isinstance(vocabulary, UnsupportedParameter):
            raise UnsupportedParameter(vocabulary.message)
        entry = self._enter(grammar, account)
        lease = Lease(grammar, partial(self._leave, account))
        try:
            with entry.lock:
                if not entry.is_decided:
                    self._compile(grammar, plain or grammar, vocabulary, entry)
            if entry.rejection is not None:
                raise entry.rejection.error()
        except BaseException:
            lease.release()
            raise
        return lease

    def lease_decided(self, grammar: Grammar, account: str = "") -> Lease | None:
        """Lease a grammar that is compiled already; None if it is neither compiled nor rejected. Does not block.

        Raises:
            InvalidValue: see `lease`.
        """
        with self._lock:
            entry = self._entries.get(grammar)
            if entry is None or not entry.is_decided:
                return None
            self._enter(grammar, account)
        lease = Lease(grammar, partial(self._leave, account))
        if entry.rejection is not None:
            lease.release()
            raise entry.rejection.error()
        return lease

    def reject(self, grammar: Grammar, rejection: Rejection, account: str = "") -> None:
        """Note that a grammar which `account` has sent is rejected.

        Raises:
            Overloaded: see `lease`.
        """
        entry = self._enter(grammar, account)
        with self._lock:
            if not entry.is_decided:
                self._reject(grammar, entry, rejection)
            self._leave(account, grammar)

    def matcher(self, grammar: Grammar) -> LLMatcher | None:
        """Return a matcher at the beginning of a leased grammar; None if it is not compiled. Engine thread only."""
        entry = self._entries.get(grammar)
        return None if entry is None or entry.prototype is None else entry.prototype.deep_copy()

    def take_compile_seconds(self) -> list[float]:
        """Return the seconds that each grammar took to compile since the last call."""
        with self._lock:
            seconds, self._compile_s = self._compile_s, []
        return seconds

    def count_failure(self, reason: str) -> None:
        """Count a request that failed because of its grammar."""
        with self._lock:
            self.failures[reason] += 1

    def _compile(self, grammar: Grammar, plain: Grammar, vocabulary: GrammarVocabulary, entry: _Entry) -> None:
        began = monotonic()
        try:
            entry.prototype = compile_grammar(plain, vocabulary)
        except InvalidValue as error:
            with self._lock:
                self._reject(grammar, entry, Rejection(error.message, error.param))
        finally:
            with self._lock:
                self._compile_s.append(monotonic() - began)

    def _reject(self, grammar: Grammar, entry: _Entry, rejection: Rejection) -> None:
        """Keep why a grammar is rejected. Under the lock."""
        num_bytes = _size(grammar, BYTES_PER_REJECTED_BYTE)
        self.num_bytes += num_bytes - entry.num_bytes
        entry.rejection, entry.num_bytes = rejection, num_bytes

    def _enter(self, grammar: Grammar, account: str) -> _Entry:
        """Return the entry of a grammar, with one more lease; drop others that no request needs."""
        with self._lock:
            entry = self._entries.get(grammar)
            if entry is None:
                num_bytes = _size(grammar, BYTES_PER_SOURCE_BYTE)
                self._make_room(num_bytes, account)
                entry = self._entries[grammar] = _Entry(num_bytes, threading.Lock())
                self.num_bytes += num_bytes
            self._entries.move_to_end(grammar)
            entry.leases[account] += 1
            return entry

    def _make_room(self, num_bytes: int, account: str) -> None:
        for grammar, entry in list(self._entries.items()):
            if self.num_bytes + num_bytes <= self._max_bytes:
                return
            if not entry.leases:
                self._drop(grammar)
        if self.num_bytes + num_bytes <= self._max_bytes:
            return
        leased = Counter({account: 0})  # bytes by account; a grammar counts for each account that leases it
        for entry in self._entries.values():
            leased.update(dict.fromkeys(entry.leases, entry.num_bytes))
        if leased[account] + num_bytes > self._max_bytes // len(leased):
            raise Overloaded("Too many different grammars are in use; try again later.")

    def _leave(self, account: str, grammar: Grammar) -> None:
        with self._lock:
            entry = self._entries[grammar]
            entry.leases[account] -= 1
            if not entry.leases[account]:
                del entry.leases[account]
            if not entry.leases and not entry.is_decided:  # an error in the compiler
                self._drop(grammar)

    def _drop(self, grammar: Grammar) -> None:
        self.num_bytes -= self._entries.pop(grammar).num_bytes


def _size(grammar: Grammar, bytes_per_byte: int) -> int:
    """Return about what an entry takes that keeps `bytes_per_byte` for each byte of the source."""
    source = grammar.source + (grammar.gbnf or "")
    return ENTRY_BYTES + bytes_per_byte * len(source.encode(errors="surrogatepass"))
