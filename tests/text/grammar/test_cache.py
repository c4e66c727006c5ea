"""Compiled grammars stay while they are leased, and are compiled once."""

from __future__ import annotations

import gc
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from app.contract.errors import GrammarTooCostly, InvalidValue, Overloaded, UnsupportedParameter
from app.contract.grammar import Grammar, GrammarKind
from app.text.grammar import cache as module
from app.text.grammar import compiled as compiled_module
from app.text.grammar import gbnf
from app.text.grammar.cache import GrammarCache
from app.text.grammar.compiled import MAX_AGAIN
from app.text.grammar.grammar_entries import Rejection
from app.text.grammar.grammar_sizes import BYTES_PER_REJECTED_BYTE, BYTES_PER_SOURCE_BYTE, ENTRY_BYTES
from app.text.grammar.grammar_sources import lark
from app.text.grammar.vocabulary import GrammarVocabulary
from tests.text import toys

SIZE = ENTRY_BYTES + BYTES_PER_SOURCE_BYTE * 2


def regex(number: int) -> Grammar:
    return Grammar(GrammarKind.REGEX, f"a{number}")


REJECTED = Grammar(GrammarKind.REGEX, "(?=a)")


def cache_of(num_entries: float = 100, kind: str = "byte_level") -> GrammarCache:
    """A cache with a vocabulary and room for some grammars."""
    made = GrammarCache(int(num_entries * SIZE))
    text, _ = toys.toy(kind)
    made.load(text, text.vocab_size, (1,))
    return made


def leases_of(cache: GrammarCache, grammar: Grammar) -> Counter[str]:
    """The leases of a grammar that is kept, by account."""
    entry = cache.entries.find(grammar)
    assert entry is not None
    return entry.leases


def test_a_grammar_is_compiled_once_and_stays_after_its_lease():
    cache = cache_of()
    cache.lease(regex(1)).release()
    cache.lease(regex(1))
    assert len(cache.take_compile_seconds()) == 1 and cache.take_compile_seconds() == []
    assert cache.entries.num_bytes == SIZE and cache.matcher(regex(1)) is not None


def test_the_vocabulary_is_read_with_the_first_grammar(monkeypatch: pytest.MonkeyPatch):
    read = []

    class Counted(GrammarVocabulary):
        def __init__(self, *arguments: Any) -> None:
            read.append(arguments)
            super().__init__(*arguments)

    monkeypatch.setattr(module, "GrammarVocabulary", Counted)
    cache = cache_of()
    assert cache.is_supported and not read
    for number in (1, 2):
        cache.lease(regex(number))
    assert len(read) == 1 and cache.is_supported and cache.digits is not None


def test_a_vocabulary_that_cannot_be_read_is_tried_once(monkeypatch: pytest.MonkeyPatch):
    read = []

    class Refused(GrammarVocabulary):
        def __init__(self, *arguments: Any) -> None:
            read.append(arguments)
            raise UnsupportedParameter("Not this one.")

    monkeypatch.setattr(module, "GrammarVocabulary", Refused)
    cache = cache_of()
    for _ in range(2):
        with pytest.raises(UnsupportedParameter, match=r"Not this one\."):
            cache.lease(regex(1))
    assert len(read) == 1 and not cache.is_supported and cache.digits is None


class HeldCompiler:
    """Compiles as the cache does, but each time only once `go_on` is set; counts the calls."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.num_calls, self.go_on = 0, threading.Event()
        self._compile = compiled_module.compile_grammar
        monkeypatch.setattr(compiled_module, "compile_grammar", self)

    def __call__(self, *args: Any) -> object:
        self.num_calls += 1
        assert self.go_on.wait(60)
        return self._compile(*args)


@pytest.mark.parametrize("grammar", [regex(1), REJECTED], ids=["good", "rejected"])
def test_threads_compile_a_grammar_once(monkeypatch: pytest.MonkeyPatch, grammar: Grammar):
    """All of them lease it before it is compiled."""
    cache, compiler = cache_of(), HeldCompiler(monkeypatch)
    with ThreadPoolExecutor(3) as threads:
        leases = [threads.submit(cache.lease, grammar) for _ in range(3)]
        try:
            while (entry := cache.entries.find(grammar)) is None or entry.leases.total() < 3:
                time.sleep(0.001)
        finally:
            compiler.go_on.set()
        errors = [type(each.exception()) for each in leases]
    assert compiler.num_calls == 1 and errors == [InvalidValue if grammar is REJECTED else type(None)] * 3


def test_the_grammar_used_longest_ago_makes_room():
    cache = cache_of(2.5)
    for number in (1, 2, 1, 3):
        cache.lease(regex(number)).release()
    assert cache.matcher(regex(2)) is None
    assert cache.matcher(regex(1)) is not None and cache.matcher(regex(3)) is not None


def test_an_account_may_lease_all_that_there_is_room_for_and_its_share_of_it_while_others_lease_too():
    cache = cache_of(4.5)
    leases = [cache.lease(regex(number), "many") for number in range(4)]
    with pytest.raises(Overloaded):
        cache.lease(regex(4), "many")
    leases += [cache.lease(regex(number), "few") for number in (0, 5)]
    assert cache.entries.num_bytes == 5 * SIZE, "a grammar that both lease is there once"
    with pytest.raises(Overloaded):
        cache.lease(regex(7), "few")
    leases.append(cache.lease(regex(7), "one"))
    with pytest.raises(Overloaded):
        cache.lease(regex(8), "one")
    with pytest.raises(Overloaded):
        cache.lease(regex(8), "many")
    for lease in leases:
        lease.release()
    assert cache.lease(regex(8), "many") and cache.entries.num_bytes <= 4.5 * SIZE


def test_leased_grammars_are_not_dropped():
    cache = cache_of(2.5)
    leases = [cache.lease(regex(number)) for number in (1, 2)]
    with pytest.raises(Overloaded):
        cache.lease(regex(3))
    leases[0].release()
    cache.lease(regex(3)).release()
    assert cache.matcher(regex(1)) is None and cache.matcher(regex(2)) is not None


def test_the_garbage_collector_decides_over_no_lease():
    cache = cache_of(1.5)
    cache.lease(regex(1))
    gc.collect()
    with pytest.raises(Overloaded):
        cache.lease(regex(2))
    assert cache.matcher(regex(1)) is not None


def test_releasing_twice_changes_nothing():
    cache = cache_of()
    first, second = cache.lease(regex(1)), cache.lease(regex(1))
    first.release()
    first.release()
    assert leases_of(cache, regex(1)) == {"": 1}
    second.release()
    assert not leases_of(cache, regex(1))


def test_a_rejection_is_remembered():
    cache = cache_of()
    messages = set()
    for _ in range(3):
        with pytest.raises(InvalidValue) as caught:
            cache.lease(REJECTED)
        messages.add(caught.value.message)
    assert len(messages) == 1 and "ook-around" in messages.pop()
    assert len(cache.take_compile_seconds()) == 1
    assert cache.matcher(REJECTED) is None


def test_rejections_make_room():
    cache = cache_of(2)
    for number in range(50):
        with pytest.raises(InvalidValue):
            cache.lease(Grammar(GrammarKind.REGEX, f"(?=a{number})"))
        assert cache.entries.num_bytes <= 2 * SIZE
    leases = [cache.lease(regex(number)) for number in (1, 2)]
    assert leases and cache.entries.num_bytes == 2 * SIZE


def test_an_error_of_the_compiler_leaves_nothing(monkeypatch: pytest.MonkeyPatch):
    cache = cache_of()
    monkeypatch.setattr(compiled_module, "compile_grammar", None)
    with pytest.raises(TypeError):
        cache.lease(regex(1))
    assert cache.entries.find(regex(1)) is None and cache.entries.num_bytes == 0


def test_without_a_vocabulary_grammars_are_unsupported():
    with pytest.raises(UnsupportedParameter, match="No model is loaded"):
        GrammarCache().lease(regex(1))
    with pytest.raises(UnsupportedParameter, match="neighbours"):
        cache_of(kind="word_pieces").lease(regex(1))
    assert [each.is_supported for each in (GrammarCache(), cache_of(kind="word_pieces"), cache_of())] == [
        False, False, True,
    ]  # fmt: skip


def test_a_spent_grammar_is_compiled_again_and_one_that_many_begin_again_with():
    cache = cache_of()
    cache.lease(regex(1))
    first = cache.compiled(regex(1))
    assert first is not None and cache.compiled(regex(1)) is first
    first.is_spent = True
    second = cache.compiled(regex(1), is_again=True)
    assert second is not None and second is not first and not second.is_spent
    assert all(cache.compiled(regex(1), is_again=True) is second for _ in range(MAX_AGAIN - 1))
    assert all(cache.compiled(regex(1)) is second for _ in range(2 * MAX_AGAIN)), "for the first time"
    assert cache.compiled(regex(1), is_again=True) is not second
    assert cache.compiled(regex(2)) is None


def test_matchers_are_copies():
    cache = cache_of()
    cache.lease(regex(1))
    one, other = cache.matcher(regex(1)), cache.matcher(regex(1))
    assert one is not None and other is not None
    one.consume_token(toys.toy("byte_level")[0].encode("a", add_special_tokens=False)[0])
    assert one.compute_bitmask() != other.compute_bitmask()


def test_only_what_is_decided_is_leased_without_compiling(monkeypatch: pytest.MonkeyPatch):
    cache, compiler = cache_of(), HeldCompiler(monkeypatch)
    assert cache.lease_decided(regex(1)) is None and cache.entries.find(regex(1)) is None
    with ThreadPoolExecutor(1) as threads:
        compiled = threads.submit(cache.lease, regex(1))
        try:
            while not compiler.num_calls:
                time.sleep(0.001)
            assert cache.lease_decided(regex(1)) is None, "it is being compiled"
        finally:
            compiler.go_on.set()
        compiled.result().release()
    lease = cache.lease_decided(regex(1), "one")
    assert lease is not None and leases_of(cache, regex(1)) == {"one": 1} and compiler.num_calls == 1


def test_a_rejection_that_another_process_found_is_kept():
    cache = cache_of()
    cache.reject(regex(1), Rejection("Too slow.", "grammar", is_too_costly=True))
    for lease in (cache.lease, cache.lease_decided):
        with pytest.raises(GrammarTooCostly, match="Too slow") as caught:
            lease(regex(1))
        assert caught.value.param == "grammar"
    assert cache.take_compile_seconds() == [] and not leases_of(cache, regex(1))
    assert cache.entries.num_bytes == ENTRY_BYTES + 2 * BYTES_PER_REJECTED_BYTE


def test_a_grammar_with_gbnf_is_known_as_lark_after_its_trial(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gbnf, "lark_of_gbnf", None)
    cache, grammar, plain = GrammarCache(is_served=True), lark('root ::= "a"'), Grammar(GrammarKind.LARK, 'start: "a"')
    cache.accept(grammar, plain, compile_s=0.5).release()
    assert cache.cost_of(grammar)[1] == 0.5
    assert cache.plain(grammar) == plain and cache.lease_decided(grammar) is not None


def test_a_grammar_that_was_tried_takes_what_its_trial_took():
    cache = GrammarCache(is_served=True)
    lease = cache.accept(regex(1), regex(1), num_bytes=10 * SIZE)
    assert cache.entries.num_bytes == 10 * SIZE
    cache.condemn(regex(1), "Too slow", "somebody")
    assert cache.entries.num_bytes == ENTRY_BYTES + 2 * BYTES_PER_REJECTED_BYTE
    with pytest.raises(GrammarTooCostly, match="Too slow"):
        cache.lease_decided(regex(1))
    lease.release()
