"""Compiled grammars, kept while a request needs them, and afterwards while there is room.

The API compiles before it submits a request, so that the engine thread never does: it holds a `Lease` until the request
has ended, and a leased grammar is never dropped. Rejections are kept too, so that a grammar that is sent again and
again is compiled once, whatever comes of it. A server has each grammar tried by another process first (see
`children/trial.py`), and notes here what became of that.
"""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from app.contract.errors import InvalidValue, UnsupportedParameter
from app.contract.grammar import Grammar
from app.runtime.clock import Clock, monotonic
from app.runtime.process_memory import family_bytes
from app.runtime.token_bucket import TokenBuckets
from app.text.grammar.children.fork_client import ForkClient
from app.text.grammar.children.mask_workers import MaskWorkers
from app.text.grammar.compiled import MAX_AGAIN, CompiledGrammar
from app.text.grammar.grammar_counts import GrammarCounts
from app.text.grammar.grammar_entries import Entry, GrammarEntries, Lease, Rejection
from app.text.grammar.grammar_sizes import MAX_BYTES, compiled_bytes
from app.text.grammar.number_digits import NumberDigits
from app.text.grammar.vocabulary import GrammarVocabulary, check_supported
from app.text.tokens.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher


TOO_COSTLY_A_MINUTE = 4
"""How many of an account's trials, and how many of its answers, may cost too much within a minute."""


class GrammarCache:
    """The compiled grammars of one model. Any thread, but for `matcher` and `compiled`.

    With `is_served` the grammars come from clients, and other processes try them, compile them and find their masks.

    Attributes:
        entries: the grammars that are kept.
        failures: how many requests failed because of a grammar, by reason: `refused` before they began, `limit` and
            `no_token` while they were answered.
        children: forks those processes, from `load` on; None if not `is_served`.
        workers: keeps the one that finds masks; set when the engine is built.
        expensive: counts the grammars of each account that took long to compile.
        costly: counts those that cost too much while an answer was made.
    """

    def __init__(self, max_bytes: int = MAX_BYTES, *, is_served: bool = False, clock: Clock = monotonic) -> None:
        self.entries = GrammarEntries(max_bytes)
        self.failures: Counter[str] = Counter({"refused": 0, "limit": 0, "no_token": 0})
        self.children: ForkClient | None = None
        self.is_served = is_served
        self.workers: MaskWorkers | None = None
        self.expensive = TokenBuckets(TOO_COSTLY_A_MINUTE / 60, TOO_COSTLY_A_MINUTE, clock)
        self.costly = TokenBuckets(TOO_COSTLY_A_MINUTE / 60, TOO_COSTLY_A_MINUTE, clock)
        self._vocabulary: partial[GrammarVocabulary] | GrammarVocabulary | UnsupportedParameter | None = None
        self._reading = threading.Lock()  # the vocabulary
        self._compile_s: list[float] = []
        self._counting = threading.Lock()

    def load(self, tokenizer: Tokenizer, vocab_size: int, eos_token_ids: tuple[int, ...]) -> str | None:
        """Take a model's vocabulary; return why grammars are not supported for it, if that is known. Blocks.

        If `is_served` it is read now, for the other processes; else with the first grammar, since many programs have
        none, and it takes 2 to 4 µs a token.
        """
        try:
            check_supported(tokenizer)
            if self.is_served:
                self.children = ForkClient(tokenizer, vocab_size, eos_token_ids)
            else:
                self._vocabulary = partial(GrammarVocabulary, tokenizer, vocab_size, eos_token_ids)
        except UnsupportedParameter as error:
            self._vocabulary = error
            return error.message
        return None

    @property
    def is_supported(self) -> bool:
        """Whether the loaded model's tokenizer supports grammars, as far as that is known."""
        return self.children is not None or isinstance(self._vocabulary, (partial, GrammarVocabulary))

    def lease(self, grammar: Grammar, account: str = "") -> Lease:
        """Compile a grammar for `account`, unless it is known already, and keep it. Blocks.

        Raises:
            InvalidValue: the grammar is rejected; `param` is set only for GBNF.
            UnsupportedParameter: this model's tokenizer supports no grammars.
            Overloaded: all compiled grammars are in use, and the account has its share of them.
        """
        vocabulary = self._read_vocabulary()
        entry = self.entries.enter(grammar, account)
        return self._lease_of(grammar, entry, account, vocabulary)

    def _read_vocabulary(self) -> GrammarVocabulary:
        """Return the vocabulary, which the first call reads; raises UnsupportedParameter."""
        with self._reading:
            if isinstance(self._vocabulary, partial):
                try:
                    self._vocabulary = self._vocabulary()
                except UnsupportedParameter as error:
                    self._vocabulary = error
            if self._vocabulary is None:
                raise UnsupportedParameter("No model is loaded that grammars could be compiled for.")
            if isinstance(self._vocabulary, UnsupportedParameter):
                raise UnsupportedParameter(self._vocabulary.message)
            return self._vocabulary

    def _lease_of(
        self, grammar: Grammar, entry: Entry, account: str, vocabulary: GrammarVocabulary | None = None
    ) -> Lease:
        """Return the lease of an entry that was made for it; compile the grammar with a `vocabulary`."""
        lease = Lease(grammar, partial(self.entries.leave, account))
        try:
            if vocabulary is not None:
                with entry.lock:
                    if not entry.is_decided:
                        self._compile(grammar, vocabulary, entry)
            if entry.rejection is not None:
                raise entry.rejection.error()
        except BaseException:
            lease.release()
            raise
        return lease

    def lease_decided(self, grammar: Grammar, account: str = "") -> Lease | None:
        """Lease a grammar that is compiled or was tried; None if it is not known yet. Does not block.

        Raises:
            InvalidValue: the grammar is rejected.
        """
        with self.entries.lock:
            entry = self.entries.find(grammar)
            if entry is None or not entry.is_decided:
                return None
            return self._lease_of(grammar, self.entries.enter(grammar, account), account)

    def reject(self, grammar: Grammar, rejection: Rejection, account: str = "") -> None:
        """Note that a grammar which `account` has sent is rejected.

        Raises:
            Overloaded: see `lease`.
        """
        entry = self.entries.enter(grammar, account)
        with self.entries.lock:
            if not entry.is_decided:
                self.entries.reject(grammar, rejection)
            self.entries.leave(account, grammar)

    def accept(
        self, grammar: Grammar, plain: Grammar, account: str = "", num_bytes: int = 0, compile_s: float = 0.0
    ) -> Lease:
        """Lease a grammar for `account` whose trial was good; `plain` is the same without GBNF.

        It takes `num_bytes` of memory, or what is estimated, if that is more. Its trial took `compile_s`.

        Raises:
            InvalidValue, Overloaded: see `lease`.
        """
        entry = self.entries.enter(grammar, account, num_bytes)
        with self.entries.lock:
            if not entry.is_decided:
                entry.plain, entry.compile_s = plain, compile_s
        return self._lease_of(grammar, entry, account)

    def plain(self, grammar: Grammar) -> Grammar:
        """Return a leased grammar as other processes get it: without GBNF, and without the client's field."""
        entry = self.entries.find(grammar)
        return replace(grammar if entry is None or entry.plain is None else entry.plain, param=None)

    def condemn(self, grammar: Grammar, reason: str, account: str) -> None:
        """Reject from now on a grammar that has cost too much while an answer of `account` was made."""
        with self.entries.lock:
            entry = self.entries.find(grammar)
            if entry is not None and entry.rejection is None:
                self.entries.reject(grammar, Rejection(f"{reason}.", is_too_costly=True))
                entry.plain = None
        self.costly.take(account)

    def is_barred(self, account: str) -> bool:
        """Return whether an account's answers cost too much too often, so that it gets none with grammars for now."""
        return self.costly.seconds_left(account) > 0

    def cost_of(self, grammar: Grammar) -> tuple[int, float]:
        """Return about how much memory a grammar takes where it is compiled, and what its trial took, in seconds."""
        entry = self.entries.find(grammar)
        return (compiled_bytes(grammar), 0.0) if entry is None else (entry.num_bytes, entry.compile_s)

    def why_condemned(self, grammar: Grammar) -> str | None:
        """Return why a leased grammar was rejected after its trial; None if it was not."""
        entry = self.entries.find(grammar)
        return None if entry is None or entry.rejection is None else entry.rejection.message.rstrip(".")

    def matcher(self, grammar: Grammar) -> LLMatcher | None:
        """Return a matcher at the beginning of a leased grammar; None if it is not compiled. Engine thread only."""
        compiled = self.compiled(grammar)
        return None if compiled is None else compiled.matcher()

    def compiled(self, grammar: Grammar, *, is_again: bool = False) -> CompiledGrammar | None:
        """Return a leased grammar for one sequence, which may begin again; None if it is not compiled.

        It is compiled again where it is spent, or many have begun again with it. Engine thread only.
        """
        entry = self.entries.find(grammar)
        if entry is None or entry.compiled is None:
            return None
        if entry.compiled.is_spent or (is_again and entry.compiled.num_again >= MAX_AGAIN):
            assert isinstance(self._vocabulary, GrammarVocabulary)
            entry.compiled = CompiledGrammar.compile(grammar, self._vocabulary, is_again=True)
        entry.compiled.num_again += is_again
        return entry.compiled

    @property
    def digits(self) -> NumberDigits | None:
        """The tokens that end numbers in answers whose masks are made in this process."""
        return self._vocabulary.digits if isinstance(self._vocabulary, GrammarVocabulary) else None

    def close(self) -> None:
        """End the other processes. Idempotent."""
        if self.workers is not None:
            self.workers.close()
        if self.children is not None:
            self.children.close()

    def note_compiled(self, seconds: float) -> None:
        """Note how long another process took to compile a grammar."""
        with self._counting:
            self._compile_s.append(seconds)

    def take_compile_seconds(self) -> list[float]:
        """Return the seconds that each grammar took to compile since the last call."""
        with self._counting:
            seconds, self._compile_s = self._compile_s, []
        return seconds

    @property
    def counts(self) -> GrammarCounts:
        """The counts that the metrics show."""
        pid = None if self.children is None else self.children.pid
        return GrammarCounts(
            self.entries.num_bytes,
            0 if pid is None else family_bytes(pid),
            self.num_processes,
            self.failures,
        )

    @property
    def num_processes(self) -> int:
        """How many processes were started that find masks: one, and one more for each that has ended."""
        return 0 if self.workers is None else self.workers.num_started

    def count_failure(self, reason: str) -> None:
        """Count a request that failed because of its grammar."""
        with self._counting:
            self.failures[reason] += 1

    def _compile(self, grammar: Grammar, vocabulary: GrammarVocabulary, entry: Entry) -> None:
        began = monotonic()
        try:
            entry.compiled = CompiledGrammar.compile(grammar, vocabulary)
        except InvalidValue as error:
            self.entries.reject(grammar, Rejection(error.message, error.param))
        finally:
            self.note_compiled(monotonic() - began)
