"""Digests of what every family reads and writes, made before its readers and rules were one file."""

import json
import random
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest

from app.text.answer.answer_format import AnswerFormat
from app.text.answer.choose import choose_format
from app.text.calls.call_grammar import CallGrammar
from app.text.calls.formats import FORMATS, CallFormat
from app.text.calls.tool_schemas import Unwritable
from tests.text.answer.answers import TOOLS, WRITERS, parse_calls, shown
from tests.text.calls.test_call_grammar import ODD_KEYS, STRICT
from tests.text.calls.test_parameter_calls import CASES, DEFINITIONS

FILE = Path(__file__).parent / "golden_calls.json"
MARKS: dict[str, list[str]] = {name: row["marks"] for name, row in json.loads(FILE.read_text()).items()}
PARTS = (
    '{"name": "search", "arguments": {', '"x": 1}', "}", '{"name": "', "search", '"', '"parameters": ', "\n", "   ",
    "text", "[", "]", ",", "```json\n", "```", "\\", "x" * 90, " " * 70, "search(", "text=", "'", ")", "(", "{", "x41",
    "012", "True", "-1.5e3", ":", "é", "a_1", "count", "functions.", ":0", " 5", "; ",
)  # fmt: skip
SOURCES = (
    "", "<tool_call>", "<TOOLCALL>", "<tool_calls>", "<|tool_call|>", "<|python_tag|>",
    "<|python_start|><|python_end|>", "<seed:tool_call><function=<parameter=", "<tool_call><function=<parameter=", "[TOOL_CALLS]", "[TOOL_CALLS][ARGS]",
)  # fmt: skip


def tools_of(parameters: Any) -> list[dict[str, Any]]:
    return [{"function": {"name": "f", "parameters": parameters}}]


def tool_sets() -> list[list[dict[str, Any]]]:
    """Tools whose schemas have everything that a grammar of calls looks at."""
    found = [TOOLS, STRICT, tools_of({"type": "object"}), tools_of({"type": "object", "additionalProperties": False})]
    found.append([*TOOLS, *STRICT, *tools_of({"oneOf": [{"required": ["a"]}]})])
    for schema, *_ in CASES.values():
        for required in (["given"], []):
            properties = {"given": schema, "other": {"type": "boolean"}, "never": False, "last": {"type": "null"}}
            found.append(tools_of({"properties": properties, "required": required, "$defs": DEFINITIONS}))
        found.append(tools_of({"additionalProperties": schema, "$defs": DEFINITIONS}))
    return found + [tools_of({"properties": {key: {"type": "integer"}}}) for key in ODD_KEYS]


def grammars_of(row: CallFormat, marks: list[str]) -> list[Any]:
    """The grammars of all tools in all ways, with and without marks that are special tokens."""
    found: list[Any] = []
    for special in ({}, {mark: 100 + number for number, mark in enumerate(marks)}, {marks[0]: 7}, {marks[-1]: 8}):
        for tools in tool_sets():
            for is_parallel in (True, False):
                for way in ("required", "optional", "beside"):
                    grammar = CallGrammar(row.syntax, tools, special)
                    make = getattr(grammar, way)
                    try:
                        given = ('"x"',) if way == "beside" else ()
                        found.append(make(*given, is_parallel=is_parallel))
                    except Unwritable as error:
                        found.append([error.function, error.reason])
    return found


def readings_of(name: str) -> list[Any]:
    """The events of answers, whole and cut off at every place, which are the same in pieces."""
    rng, marks, found = random.Random(name), MARKS[name], []
    calls = [("search", {"text": "hi there", "count": 3}), ("a_1", {"is_new": True}), ("other", {"x": "<y>"})]
    texts = [f"A {WRITERS[name](calls)} b"]
    texts += ["".join(rng.choices((*marks, *PARTS), k=rng.randrange(1, 16))) for _ in range(150)]
    texts += [marks[0] + "".join(rng.choices((*marks, *PARTS), k=rng.randrange(1, 12))) for _ in range(100)]
    for number, text in enumerate(texts):
        for special in ((), marks, marks[:1]):
            whole = shown(text, special)
            events = parse_calls(name, whole, special=special)
            for place in range(len(whole) + 1) if number % 10 == 0 else ():
                assert parse_calls(name, whole[:place], whole[place:], special=special) == events
                found.append([[*event, type(event).__name__] for event in parse_calls(name, whole[:place])])
            found.append([[*event, type(event).__name__] for event in events])
    return found


def digest(found: list[Any]) -> str:
    return blake2b(json.dumps(found).encode(errors="surrogatepass"), digest_size=12).hexdigest()


def made(name: str) -> dict[str, Any]:
    row, marks = FORMATS[name], MARKS[name]
    narrowed = {str(sorted({*found.syntax.marks})): found for found in map(row.narrowed, SOURCES)}
    special = {mark: number for number, mark in enumerate((*marks, "</s>"))}
    chosen = [getattr(choose_format(f"tools {mark}"), "name", None) for mark in marks]
    token_ids = [sorted(AnswerFormat(each, special_tokens=special).shown_token_ids(True)) for each in narrowed.values()]
    return {
        "marks": marks,
        "readings": digest(readings_of(name)),
        "grammars": digest([grammars_of(each, marks) for each in narrowed.values()]),
        "choices": digest([chosen, list(narrowed), token_ids]),
    }


@pytest.mark.parametrize("name", FORMATS)
def test_everything_is_as_it_was(name):
    assert made(name) == json.loads(FILE.read_text())[name]


if __name__ == "__main__":
    FILE.write_text(json.dumps({name: made(name) for name in FORMATS}, indent=1) + "\n")
