"""Every regular expression of `app/` takes linear time, and it is known whose text it gets.

A pattern that is not linear on a client's text keeps the interpreter's lock, and so stops all streams: with one of them
a header of 16 KB took half a second, a grammar of 64 KB a minute.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from app.text.reading.marks import Marks
from app.text.template.spelled_tokens import SpelledTokens
from tests.house.pattern_source import constants, functions_with_patterns, loose, made_in_functions, uses
from tests.house.pumping import Pattern, num_cases, slow_text
from tests.house.source import Module, imports, modules

# Whose text a pattern gets. What a model writes is a client's, who says what it shall write.
CLIENT, MODEL, OPERATOR, OWN = "a client's", "a model file's", "the operator's", "our own"
PATTERNS = {
    "app.api.http.cors._HEADER_NAMES": ("fullmatch", CLIENT),
    "app.api.body.invalid_field._AT": ("fullmatch", CLIENT),
    "app.api.body.invalid_field._INDEX": ("sub", CLIENT),
    "app.api.body.invalid_field._MISSING": ("fullmatch", CLIENT),
    "app.api.body.invalid_field._UNKNOWN": ("fullmatch", CLIENT),
    "app.api.body.invalid_field._VALUE": ("fullmatch", CLIENT),
    "app.api.http.middleware._ADDRESS": ("fullmatch", CLIENT),
    "app.api.http.middleware._HOST": ("fullmatch", CLIENT),
    "app.api.http.middleware._TOKEN": ("fullmatch", CLIENT),
    "app.api.routes.openapi._CONVERTER": ("sub", OWN),
    "app.api.routes.openapi._IN_PATH": ("findall", OWN),
    "app.api.routes.page._IMPORT_MAP": ("search", OWN),
    "app.api.http.static_file._NO_WEIGHT": ("fullmatch", CLIENT),
    "app.api.routes.page._OWN_ADDRESS": ("sub", OWN),
    "app.api.routes.page._VERSIONED": ("fullmatch", OWN),
    "app.text.template.template_variables._NAME": ("fullmatch", CLIENT),
    "app.checkpoint.file_parts._PART": ("search", OPERATOR),
    "app.checkpoint.hub.download._ERRNO": ("sub", OPERATOR),
    "app.checkpoint.hub.hub_listing._DIGEST": ("fullmatch", OPERATOR),
    "app.checkpoint.hub.repo_files._NO_MODEL": ("search", OPERATOR),
    "app.checkpoint.hub.repo_files._QUANT": ("finditer", OPERATOR),
    "app.checkpoint.names._HUB_ADDRESS": ("match", OPERATOR),
    "app.checkpoint.names._HUB_NAME": ("fullmatch", OPERATOR),
    "app.checkpoint.tensor_names._LAYER": ("fullmatch", MODEL),
    "app.commands.dialog.conversation_file._ESCAPED": ("match", CLIENT),
    "app.commands.dialog.conversation_file._FENCES": ("findall", CLIENT),
    "app.commands.dialog.conversation_file._MARK": ("fullmatch", CLIENT),
    "app.commands.dialog.markdown_blocks._FENCE": ("match", CLIENT),
    "app.commands.dialog.markdown_blocks._HEADING": ("match", CLIENT),
    "app.commands.dialog.markdown_blocks._ITEM": ("match", CLIENT),
    "app.commands.dialog.markdown_screen._COLOURS": ("sub", CLIENT),
    "app.commands.options._NO_NUMBER": ("fullmatch", OPERATOR),
    "app.commands.warm._CAPABILITY": ("fullmatch", OPERATOR),
    "app.config.checks._ORIGIN": ("fullmatch", OPERATOR),
    "app.config.setting._SIZE": ("fullmatch", OPERATOR),
    "app.loadgen.plots._NAMED": ("sub", OWN),
    "app.server.guard_request._SIZE_LINE": ("fullmatch", CLIENT),
    "app.server.http_protocol._UPGRADE": ("sub", CLIENT),
    "app.streaming.sse_format._LINE_END": ("split", CLIENT),
    "app.text.grammar.compile._POSITION": ("sub", CLIENT),
    "app.text.grammar.gbnf._COUNT": ("finditer", CLIENT),
    "app.text.grammar.gbnf._LARK": ("search", CLIENT),
    "app.text.grammar.gbnf._TEXTS": ("sub", CLIENT),
    "app.text.grammar.lark_rules._BRACKET": ("match", CLIENT),
    "app.text.grammar.lark_rules._HEAD": ("match", CLIENT),
    "app.text.grammar.lark_rules._OPTIONS": ("match", CLIENT),
    "app.text.grammar.lark_rules._TOKEN": ("match", CLIENT),
    "app.text.grammar.lark_text._BRACKETS": ("finditer", CLIENT),
    "app.text.grammar.lark_text._ENDING": ("sub", CLIENT),
    "app.text.grammar.lark_text._SPECIAL": ("sub", CLIENT),
    "app.text.grammar.schema_keywords._DRAFT": ("fullmatch", CLIENT),
    "app.text.template.message_form._ADDS_ARGUMENTS": ("search", MODEL),
    "app.text.template.message_form._ASKS_FOR_NONE": ("search", MODEL),
    "app.text.calls.call_reader._NAME": ("fullmatch", CLIENT),
    "app.text.reading.json_span._AFTER_SCALAR": ("search", CLIENT),
    "app.text.reading.json_span._IN_CONTAINER": ("search", CLIENT),
    "app.text.reading.json_span._IN_STRING": ("search", CLIENT),
    "app.text.calls.line_calls._NAME": ("match", CLIENT),
    "app.text.calls.named_calls._NUMBER": ("sub", CLIENT),
    "app.text.calls.python_calls._NAME": ("fullmatch match", CLIENT),
    "app.text.calls.python_literals._DIGITS": ("match", CLIENT),
    "app.text.calls.python_literals._NUMBER": ("fullmatch", CLIENT),
    "app.text.calls.python_literals._OCTAL_DIGITS": ("match", CLIENT),
    "app.text.calls.python_literals._WORD": ("match", CLIENT),
    "app.text.tokens.pieces._BYTE_TOKEN": ("fullmatch", MODEL),
    "app.text.tokens.pieces._STEPS": ("fullmatch", MODEL),
    "app.text.tokens.tokenizer._UP_TO_A_WORD": ("match", CLIENT),
    "app.text.template.template_allowance._NUMBER": ("findall", CLIENT),
    "app.text.template.template_allowance._WIDE": ("search", CLIENT),
    "app.text.template.template_sandbox._NOT_ASCII": ("sub", CLIENT),
    "app.text.calls.tools._NAME": ("fullmatch", CLIENT),
}
WORDS = ["<|a|>", "<|ab|>", "<|reserved_1|>", "<|reserved_12|>", "</s>", "aaa", "a"]
# Functions that compile patterns from words of a model file, and calls that make them do so.
MADE: dict[tuple[str, str], tuple[Callable[[], object], str]] = {
    ("app.text.reading.marks", "__init__"): (lambda: Marks(WORDS), "search"),
    ("app.text.template.spelled_tokens", "__init__"): (lambda: SpelledTokens(WORDS), "finditer"),
    ("app.text.template.spelled_tokens", "split"): (
        lambda: list(SpelledTokens(WORDS).split("a", "\U000f0000\U000f0001")),
        "finditer",
    ),
}
# The first four were in reach of clients, each with the method that was called.
FORMER = {
    "a key in a header": (re.compile(r"[ \t]*bearer[ \t]+(.*?)[ \t]*", re.IGNORECASE | re.DOTALL), "fullmatch"),
    "texts of GBNF": (re.compile(r'"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]|#.*'), "sub"),
    "a format string": (re.compile(r"\*|\d{5}|\{[^{}]*:[^{}]*\{"), "search"),
    "a line of Lark": (re.compile(r"(?m)^\s*(%llguidance\b|start\s*:)"), "search"),
    "the end of blanks": (re.compile(rb"[ \t]+$"), "sub"),
    "a repeat in a repeat": (re.compile(r"(?:a+)+b"), "match"),
    "alternatives that overlap": (re.compile(r"(?:a|aa|.)*z", re.DOTALL), "fullmatch"),
    "three repeats": (re.compile(r"x\s*\w*\s*\w*\s*;"), "match"),
}


@pytest.fixture(scope="module")
def found() -> dict[tuple[Module, str], Pattern]:
    """Every pattern that is a constant, by module and name."""
    return {(module, name): pattern for module in modules() for name, pattern in constants(module).items()}


def key(module: Module, name: str) -> str:
    """The name of a pattern in the table."""
    return f"{module.name}.{name}"


def compiled_by(call: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> list[Pattern]:
    """The patterns that a call compiles."""
    compiled: list[Pattern] = []
    compile_pattern = re.compile
    with monkeypatch.context() as patch:
        patch.setattr(re, "compile", lambda *given: compiled.append(compile_pattern(*given)) or compiled[-1])
        call()
    return compiled


def test_the_table_names_every_pattern_and_no_other(found):
    assert sorted(key(*one) for one in found) == sorted(PATTERNS)
    makers = [(module.name, function) for module in modules() for function in made_in_functions(module)]
    assert sorted(makers) == sorted(MADE)


def test_the_table_names_the_methods_that_are_called_on_each_pattern(found):
    functions = functions_with_patterns(modules())
    called = {key(module, name): " ".join(sorted(uses(module.tree, name, functions))) for module, name in found}
    assert called == {name: methods for name, (methods, _) in PATTERNS.items()}


def test_patterns_are_constants_of_the_module_that_uses_them():
    assert [line for module in modules() for line in loose(module)] == []
    imported = {name for module in modules() for name in imports(module.tree)}
    assert sorted(imported & PATTERNS.keys()) == []


def test_every_pattern_takes_linear_time(found):
    """But for those that read our own texts, once and at the start."""
    slow = {}
    for one, pattern in found.items():
        methods, whose = PATTERNS[key(*one)]
        texts = [] if whose == OWN else [slow_text(pattern, method) for method in methods.split()]
        slow |= {key(*one): text for text in texts if text is not None}
    assert slow == {}


@pytest.mark.parametrize("maker", MADE, ids=".".join)
def test_patterns_made_of_words_take_linear_time(maker, monkeypatch):
    call, method = MADE[maker]
    patterns = compiled_by(call, monkeypatch)
    assert patterns and all("<" in pattern.pattern for pattern in patterns)
    assert [text for pattern in patterns if (text := slow_text(pattern, method))] == []


@pytest.mark.parametrize("name", FORMER)
def test_a_pattern_that_is_not_linear_is_found(name):
    assert slow_text(*FORMER[name]) is not None


def test_unicode_is_not_normalized_by_python():
    """Python's is quadratic in marks: 80,000 of them take seconds, with the lock."""
    assert [line for module in modules() for line in normalizing(module)] == []
    planted = "import unicodedata\nunicodedata.normalize('NFC', x)\nfrom unicodedata import normalize"
    assert len(normalizing(Module("x", Path("x"), ast.parse(planted)))) == 2


def normalizing(module: Module) -> list[str]:
    """What a module has of Python's normalizing."""
    calls = [node for node in ast.walk(module.tree) if isinstance(node, ast.Attribute) and node.attr == "normalize"]
    named = [f"{module.name}:{node.lineno}" for node in calls if ast.unparse(node.value) == "unicodedata"]
    return named + [name for name in imports(module.tree) if name == "unicodedata.normalize"]


PLANTED = """
import re
from re import sub
A: re.Pattern[str] = re.compile("a*")
B = re.compile(r"b" "b")
def f(x, chars: re.Pattern[str]):
    re.sub("c", "", x)
    re.compile("d").match(x)
    re.compile(x + "e")
    chars.match(x)
    A.search(x), A.pattern, f(x, B), g(A)
"""


def test_planted_patterns_and_their_uses_are_found():
    module = Module("planted", Path("x"), ast.parse(PLANTED))
    functions = functions_with_patterns([module])
    assert {name: pattern.pattern for name, pattern in constants(module).items()} == {"A": "a*", "B": "bb"}
    assert functions == {"f": {"match"}}
    assert uses(module.tree, "A", functions) == {"search", "unknown"}
    assert uses(module.tree, "B", functions) == {"match"}
    assert made_in_functions(module) == ["f", "f"]
    assert len(list(loose(module))) == 3


def test_every_long_repeat_of_a_pattern_gets_texts():
    assert num_cases(re.compile("ab?c{3}")) == 0
    assert num_cases(re.compile("a*")) < num_cases(re.compile("a*b+(c|d)*")) < num_cases(re.compile("a*b+([cd]e*)*"))
