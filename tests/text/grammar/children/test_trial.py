"""A trial says whether a grammar is accepted, and what GBNF becomes; its end says which limit was reached."""

from __future__ import annotations

import signal
from dataclasses import replace
from functools import cache

import pytest

from app.contract.grammar import Grammar, GrammarKind
from app.text.grammar.children.trial import (
    FAULT,
    NO_MEMORY,
    Ended,
    GrammarLimits,
    Verdict,
    encode_grammar,
    read_trial,
    run_trial,
)
from app.text.grammar.grammar_sources import lark
from app.text.grammar.vocabulary import GrammarVocabulary
from tests.text import toys


@cache
def vocabulary() -> GrammarVocabulary:
    """The vocabulary of a byte-level tokenizer."""
    text, _ = toys.toy("byte_level")
    return GrammarVocabulary(text, text.vocab_size, [1])


def verdict_on(grammar: Grammar) -> Verdict | None:
    """What a trial of a grammar says."""
    return read_trial(run_trial(encode_grammar(grammar), vocabulary()))[0]


@pytest.mark.parametrize("follows_reasoning", [False, True])
@pytest.mark.parametrize(
    ("kind", "source"),
    [
        (GrammarKind.JSON_SCHEMA, '{"type":"object"}'),
        (GrammarKind.REGEX, "a+\n"),
        (GrammarKind.CHOICE, '["a","\\u2028"]'),
        (GrammarKind.LARK, 'start: "a"\r\n'),
    ],
)
def test_a_good_grammar_is_accepted(kind: GrammarKind, source: str, follows_reasoning: bool):
    assert verdict_on(Grammar(kind, source, follows_reasoning)) == Verdict()


def test_a_rejection_has_its_reason():
    found = verdict_on(Grammar(GrammarKind.REGEX, "(?=a)"))
    assert found is not None and "ook-around" in (found.rejection or "") and found.param is None


def test_gbnf_becomes_lark_where_it_stands():
    plain = verdict_on(lark('root ::= "a" | "b"'))
    assert plain is not None and plain.lark is not None and plain.lark.endswith('start: "a"\n     | "b"')
    beside = verdict_on(replace(lark('root ::= "a"'), source='start: "call" | answer\nanswer: %lark {\n\0\n}'))
    assert beside is not None and beside.rejection is None
    assert beside.lark == 'start: "call" | answer\nanswer: %lark {\n%llguidance {}\nstart: "a"\n}'


@pytest.mark.parametrize(("source", "words"), [("root ::= (", "no GBNF"), ('root ::= "a" root', "never be completed")])
def test_wrong_gbnf_is_rejected_by_its_field(source: str, words: str):
    found = verdict_on(lark(source))
    assert found is not None and words in (found.rejection or "") and found.param == "grammar"


LIMITS = GrammarLimits(cpu_s=2, memory_bytes=3 * 2**20, wall_s=4)


@pytest.mark.parametrize(
    ("status", "is_late", "words"),
    [
        (-signal.SIGPROF, False, "more than 2 s of processor time"),
        (NO_MEMORY, False, "more than 3 MiB of memory"),
        (-signal.SIGABRT, False, "more than 3 MiB of memory"),
        (-signal.SIGSEGV, False, "more than 3 MiB of memory"),
        (-signal.SIGKILL, True, "not compiled within 4 s"),
    ],
)
def test_the_limit_that_ended_a_trial_is_named(status: int, is_late: bool, words: str):
    assert words in (LIMITS.reached(status, is_late=is_late) or "")


def test_a_grammar_that_is_compiled_but_large_is_told():
    assert "more than 64 MiB of memory" in (LIMITS.reached(0, is_late=False, num_bytes=65 * 2**20) or "")
    assert LIMITS.reached(0, is_late=False, num_bytes=63 * 2**20) is None


@pytest.mark.parametrize("status", [0, FAULT, -signal.SIGKILL, -signal.SIGTERM])
def test_other_ends_are_no_limits(status: int):
    assert LIMITS.reached(status, is_late=False) is None


@pytest.mark.parametrize(
    ("data", "verdict", "ended"),
    [
        (b"", None, Ended(FAULT, 0)),
        (b"{}\n", Verdict(), Ended(FAULT, 0)),
        (b'{"rej', None, Ended(FAULT, 0)),
        (b'{"rej\n{"status":-9,"cpu_s":0.5,"limit":null}\n', None, Ended(-9, 0.5)),
        (b'\n{"status":-9,"cpu_s":0.5,"limit":"x"}\n', None, Ended(-9, 0.5, limit="x")),
        (b'{"rejection":"no"}\n\n{"status":0,"cpu_s":0.5,"limit":null}\n', Verdict("no"), Ended(0, 0.5)),
    ],
)
def test_what_is_cut_is_missing(data: bytes, verdict: Verdict | None, ended: Ended):
    assert read_trial(data) == (verdict, ended)
