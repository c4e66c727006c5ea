"""GBNF, the grammars of llama.cpp, as Lark: the library's converter, and the checks that it does not make.

The converter is Python, and recursive in brackets. Its search for terminals is quadratic in rules, so they are marked
here before.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

from llguidance.gbnf_to_lark import (
    AlternativeNode,
    ASTNode,
    GrammarParser,
    RepetitionNode,
    RuleNode,
    RuleRefNode,
    SequenceNode,
    resolve,
)

from app.contract.errors import InvalidValue
from app.text.grammar.lark_rules import check_rules
from app.text.grammar.rule_parts import DEAD, Part, found, reference

MAX_RULES = 400
MAX_BRACKETS = 64
MAX_REPETITIONS = 100_000
MAX_DIGITS = 64
ROOT = "root"
# Texts, sets of characters, and comments. One that is not closed goes on to the end: looked for again behind each `[`,
# the end of thousands would take minutes.
_TEXTS = re.compile(r'"(?:\\[\s\S]|[^"\\])*+(?:"|\\?\Z)|\[(?:\\[\s\S]|[^\]\\])*+(?:\]|\\?\Z)|#.*')
# A line of Lark, as the library recognizes it; its own pattern is quadratic in empty lines.
_LARK = re.compile(r"^[^\S\n]*+(?:%llguidance\b|start\s*+:)", re.MULTILINE)
_COUNT = re.compile(r"[{,]\s*+(\d++)")
Rules = Mapping[str, RuleNode]


def lark_of_gbnf(text: str) -> str:
    """Return a grammar in GBNF as Lark; one that is Lark, and has `::=` in a text, is returned as it is.

    Raises:
        InvalidValue: it is neither, too large, or can never be completed; `param` is `grammar`.
    """
    if _LARK.search(text):
        return text
    plain = _TEXTS.sub("", text)
    for what, count, most in (
        ("rules", text.count("::="), MAX_RULES),
        ("nested brackets", _depth(plain), MAX_BRACKETS),
        ("digits in a number of repetitions", _num_digits(plain), MAX_DIGITS),
    ):
        if count > most:
            raise InvalidValue(f"grammar has {count} {what}; at most {most} are allowed.", param="grammar")
    try:
        rules = GrammarParser().parse(text)
        _check_repetitions(rules)
        check_rules({name: _part(rule, _num_needed) for name, rule in rules.items()}, ROOT)
        _mark_terminals(rules)
        resolve(rules)
        _add_brackets(rules)
    except InvalidValue:
        raise
    except Exception as error:  # the library has no errors of its own
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise InvalidValue(f"grammar is no GBNF: {reason[:200]}.", param="grammar") from None
    in_order = sorted(rules.values(), key=lambda rule: rule.order)
    return "\n".join(["%llguidance {}", *map(str, in_order)])


def _check_repetitions(rules: Rules) -> None:
    for node in (part for rule in rules.values() for part in _parts(rule)):
        count = max(node.min_times, node.max_times or 0) if isinstance(node, RepetitionNode) else 0
        if count > MAX_REPETITIONS:
            raise InvalidValue(
                f"grammar repeats a part {count} times; at most {MAX_REPETITIONS} are allowed, or any number with `*`.",
                param="grammar",
            )


def _add_brackets(rules: Rules) -> None:
    """Write repetitions of repetitions with brackets, which Lark needs and the converter leaves out."""
    for node in [part for rule in rules.values() for part in _parts(rule)]:
        if isinstance(node, RepetitionNode) and isinstance(node.node, RepetitionNode):
            node.node = SequenceNode([node.node])


def _num_needed(node: ASTNode) -> int:
    """Return how many of a part's own parts must have a complete text so that it has one."""
    if isinstance(node, AlternativeNode):
        return 1
    return 0 if isinstance(node, RepetitionNode) and node.min_times == 0 else len(node.children())


def _mark_terminals(rules: Rules) -> None:
    """Mark the rules that refer to no rules but marked ones; the root is none."""
    parts = {name: _part(rule, lambda node: len(node.children())) for name, rule in rules.items() if name != ROOT}
    for name in found(parts | {ROOT: DEAD}):
        rules[name].rule_is_terminal = True


def _part(node: ASTNode, num_needed: Callable[[ASTNode], int]) -> Part:
    if isinstance(node, RuleRefNode):
        return reference(node.name)
    return Part([_part(child, num_needed) for child in node.children()], num_needed(node))


def _parts(node: ASTNode) -> Iterator[ASTNode]:
    yield node
    for child in node.children():
        yield from _parts(child)


def _num_digits(plain: str) -> int:
    """Return the digits of the longest number of repetitions in a grammar without its texts."""
    return max((len(match[1]) for match in _COUNT.finditer(plain)), default=0)


def _depth(plain: str) -> int:
    depth = most = 0
    for character in plain:
        if character in "({":
            depth += 1
            most = max(most, depth)
        elif character in ")}":
            depth = max(0, depth - 1)
    return most
