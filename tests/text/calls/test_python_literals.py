"""Literals of Python as JSON: what Python reads is what JSON says, however the text is cut."""

import ast
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.text.calls.python_literals import pass_literal
from app.text.reading.marks import SHOWN
from app.text.reading.parser import Parser
from app.text.reading.reader import Reader, Reading
from tests.text.answer.answers import cut

TEXTS = st.text(st.sampled_from("ab é猫🙂\n\t\r\0\x7f\\'\"{}[](),:=<>x0n\u2028"), max_size=12)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=3)),
    max_leaves=8,
)


class Literal:
    """Reads one literal; `written` is its JSON, `is_complete` whether it has ended."""

    def __init__(self) -> None:
        self.written = ""
        self.is_complete = False

    def read(self, reader: Reader) -> Reading[None]:
        self.is_complete = yield from pass_literal(reader, self.add)

    def add(self, text: str) -> None:
        self.written += text


def literal(*pieces: str) -> Literal:
    machine = Literal()
    parser = Parser(machine.read)
    for piece in pieces:
        parser.feed(piece)
    parser.finish()
    return machine


@given(value=VALUES, places=st.lists(st.integers(0, 2**16), max_size=8))
def test_what_python_writes_is_read(value, places):
    for text in (f"{value!r})", f"{json.dumps(value)})", f"{value!a})"):
        found = literal(text)
        assert found.is_complete
        assert json.loads(found.written) == value
        assert literal(*cut(text, places)).written == found.written


@pytest.mark.parametrize(
    "text",
    [
        r"'\x41\u00e9\U0001F600\101\7\n\\\
x'",
        '"""a "quoted" \'text\'\n"""',
        "'''it's'''",
        "''",
        "''''''",
        "1_000",
        "+5",
        "-0",
        ".5",
        "-1.",
        "1.e3",
        "1E-2",
        "[1, 'x', [], ]",
        "{'a': {'b': None,},}",
        "[\n1\n,\n2\n]",
    ],
)
def test_python_agrees(text):
    found = literal(f"{text})")
    assert found.is_complete
    assert json.loads(found.written) == ast.literal_eval(text)
    assert literal(*text, ")").written == found.written


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("007", 7),
        ("true", True),
        ("'it's'", "it's"),
        ("'a' 'b'", "a' 'b"),
        (r"'\ud83d\ude00'", "😀"),
        (r"'a\/b'", "a/b"),
        (r"'\ufdd0'", SHOWN),
        (r"'\d\x4'", r"\d\x4"),
        (r"'\U00110000'", r"\U00110000"),
        (r"'\N{DIGIT ONE}'", r"\N{DIGIT ONE}"),
    ],
)
def test_what_models_write_beyond_python(text, value):
    found = literal(f"{text})")
    assert found.is_complete
    assert json.loads(found.written) == value
    assert SHOWN not in found.written
    assert literal(*text, ")").written == found.written


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("x)", ""),
        ("f(1))", ""),
        ("1+2)", ""),
        ("inf)", ""),
        ("0x1F)", ""),
        ("_1)", ""),
        ("-)", ""),
        ("1j)", ""),
        ("f'x')", ""),
        ("(1, 2))", ""),
        ("{1})", "{"),
        ("{'a'})", '{"a"'),
        ("[1 2])", "[1"),
        ("[,])", "["),
        (f"'a{SHOWN}b')", '"a'),
        ("'a", '"a'),
        ("'a'", '"a'),
        (r"'a\n", r'"a\n'),
        ("'a\\", '"a'),
        (r"'a\x4", '"a'),
        ("[1, 2", "[1, "),
    ],
)
def test_what_is_no_literal_breaks_off(text, written):
    found = literal(text)
    assert (found.is_complete, found.written) == (False, written)
    assert literal(*text).written == written
