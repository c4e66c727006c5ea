"""GBNF becomes Lark, unless it is too large or can never be completed."""

from __future__ import annotations

import pytest
from llguidance.gbnf_to_lark import ASTNode

from app.contract.errors import InvalidValue
from app.contract.grammar import Grammar, GrammarKind
from app.text.grammar.gbnf import MAX_REPETITIONS, lark_of_gbnf
from tests.own_process import within_processor_time
from tests.text.grammar.test_compile import accepts


@pytest.mark.parametrize(
    ("gbnf", "text"),
    [
        ('root ::= "a" | "b" root', "bba"),
        ('root ::= some-rule+ # more\nsome-rule ::= "a" |\n  [0-9]{2}', "a42"),
        ('root ::= x{0,2} "c"\nx ::= "b"', "c"),
        ('root ::= unused? "a"\nunused ::= "b" unused', "a"),
        ('root ::= "a"\nunused ::= "b" unused', "a"),
        ('root ::= "a" | x{2}\nx ::= ("b" | "c") x', "a"),
        ('root ::= ("a" | "") (x | x "d")\nx ::= "b" | "c" root', "acbd"),
        ('root ::= a\na ::= "(" b ")"\nb ::= a | ""', "(())"),
        ('root ::= ((("a"?)+ | ("b"{2}){2,3}))* "c"', "aabbbbc"),
        ('root ::= ("a"{100}){2}', "a" * 200),
        ("root ::= " + '"("' * 70 + ' [(] # "(', "(" * 71),
    ],
)
def test_a_text_of_the_grammar_satisfies_it(gbnf: str, text: str):
    assert accepts(Grammar(GrammarKind.LARK, lark_of_gbnf(gbnf)), text)


def test_lark_is_left_as_it_is():
    assert lark_of_gbnf('start: "::="') == 'start: "::="'


@pytest.mark.parametrize(
    ("gbnf", "rule"),
    [
        ('root ::= "a" root', "root"),
        ("root ::= root", "root"),
        ('root ::= [a-z]+ x\nx ::= "b" x', "x"),
        ('root ::= y x+\ny ::= "y" | y\nx ::= "b" x | x "c"', "x"),
        ('root ::= a\na ::= "x" b\nb ::= "y" a', "a"),
        ("root ::= y? x\ny ::= y\nx ::= x", "x"),
    ],
)
def test_a_grammar_without_a_complete_text_is_rejected_with_the_rule(gbnf: str, rule: str):
    with pytest.raises(InvalidValue, match=f"never be completed: the rule '{rule}' has no alternative") as caught:
        lark_of_gbnf(gbnf)
    assert caught.value.param == "grammar"


def test_chains_of_rules_are_followed_to_their_end():
    chain = "\n".join(f'r{number} ::= "a" r{number + 1}' for number in range(300))
    assert "R299" in lark_of_gbnf(f'root ::= r0\n{chain}\nr300 ::= "b"')
    with pytest.raises(InvalidValue, match="'r300'"):
        lark_of_gbnf(f"root ::= r0\n{chain}\nr300 ::= r300")


@pytest.mark.parametrize("count", ["{%d}", "{%d,}", "{0,%d}", "{1,%d}"])
def test_repetitions_are_limited(count: str):
    rule = 'root ::= ("a" | x)%s\nx ::= "b" x?'
    lark_of_gbnf(rule % (count % MAX_REPETITIONS))
    with pytest.raises(InvalidValue, match=f"{MAX_REPETITIONS + 1} times; at most {MAX_REPETITIONS} are") as caught:
        lark_of_gbnf(rule % (count % (MAX_REPETITIONS + 1)))
    assert caught.value.param == "grammar"


@pytest.mark.parametrize(
    ("gbnf", "words"),
    [
        ("root ::= (", "no GBNF"),
        ("root ::= x", "Rule 'x' not found"),
        ('x ::= "a"', "No 'root' rule"),
        ('root ::= "a"{' + "9" * 5000 + "}", "5000 digits in a number of repetitions; at most 64"),
        ('root ::= "a"{1, ' + "9" * 65 + "}", "65 digits in a number of repetitions; at most 64"),
        ('root ::= "a"{' + "9" * 64 + "}", "9{64} times; at most 100000"),
        ("\n".join(f'r{number} ::= "a"' for number in range(401)), "401 rules; at most 400"),
        ("root ::= " + "(" * 65 + '"a"' + ")" * 65, "65 nested brackets; at most 64"),
    ],
    ids=lambda value: value[:30],
)
def test_what_is_wrong_is_said(gbnf: str, words: str):
    with pytest.raises(InvalidValue, match=words) as caught:
        lark_of_gbnf(gbnf)
    assert caught.value.param == "grammar"


def reason(gbnf: str) -> str:
    """Why a grammar is rejected; "" if it is accepted."""
    try:
        lark_of_gbnf(gbnf)
    except InvalidValue as error:
        return error.message
    return ""


@pytest.mark.parametrize(
    "gbnf",
    ['root ::= "a" ' + "[" * 65_000, 'root ::= "a" "' + '\\"' * 32_000, "\n" * 65_000 + "root ::= ("],
    ids=["open sets", "an open text", "empty lines"],
)
def test_the_largest_grammar_is_read_in_linear_time(gbnf: str):
    assert "no GBNF" in within_processor_time(6, reason, gbnf)


def test_rules_of_texts_alone_are_terminals_but_for_the_root():
    lark = lark_of_gbnf('root ::= a b | c\na ::= "x" b\nb ::= [0-9]+\nc ::= "y" root?\n')
    names = {line.partition(":")[0] for line in lark.splitlines()[1:] if line[0].isalpha()}
    assert names == {"start", "A", "B", "c"}


def test_terminals_behind_a_chain_of_rules_are_found_in_one_pass(monkeypatch):
    num_calls = 0
    is_terminal = ASTNode.is_terminal

    def counted(node: ASTNode) -> bool:
        nonlocal num_calls
        num_calls += 1
        return is_terminal(node)

    monkeypatch.setattr(ASTNode, "is_terminal", counted)
    chain = "\n".join(f"r{number} ::= r{number + 1}" for number in range(1, 390))
    gbnf = "root ::= r0 | r0 root\nr0 ::= " + '"a" ' * 1000 + f'r1\n{chain}\nr390 ::= "a"'
    assert "R390:" in lark_of_gbnf(gbnf)
    assert num_calls < 5000  # there are about 3,000 parts
