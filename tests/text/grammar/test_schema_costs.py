"""Reading what an answer must be takes time in proportion to its size, whatever it is made of."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, ItemsView
from contextlib import suppress
from itertools import product
from typing import Any

import pytest

from app.contract.errors import InvalidValue
from app.contract.grammar import StructuredOutputs
from app.text.answer.answer_format import AnswerFormat
from app.text.answer.tool_use import choose_tools
from app.text.calls.formats import FORMATS
from app.text.grammar.grammar_sources import MAX_SCHEMA_BYTES, MAX_SOURCE_BYTES, grammar_of
from app.text.grammar.schema_keywords import effective
from tests.text.grammar.test_schema_keywords import FREE, JUDGED

KEYWORDS = [
    *FREE, *JUDGED, "$defs", "additionalItems", "additionalProperties", "allOf", "anyOf", "components", "definitions",
    "items", "oneOf", "patternProperties", "prefixItems", "properties",
]  # fmt: skip
HOLDING: dict[str, Callable[[Any], Any]] = {
    "schema": lambda schema: schema,
    "list": lambda schema: [schema],
    "named": lambda schema: {"a": schema},
}
CONDITIONS = (None, True, False, {"type": "string"})
NUM_LEVELS = 7
MOST_S = 0.3  # for 256 KB; an exponential cost would be minutes, and a quadratic one seconds
MOST_TEXT_S = 0.6  # for 64 KB; Lark takes the most, 0.16 s


class Counted(dict[str, Any]):
    """An object of a schema that counts how often all of it is read."""

    num_reads = 0

    def items(self) -> ItemsView[str, Any]:
        self.num_reads += 1
        return super().items()


def nested(keyword: str, holding: Callable[[Any], Any], condition: object) -> list[Counted]:
    """Return the schemas of one in which each is under `keyword` of the next, the outermost last."""
    schemas = [Counted(type="string")]
    for _ in range(NUM_LEVELS):
        beside = {} if condition is None else {"if": condition}
        schemas.append(Counted({keyword: holding(schemas[-1]), **beside}))
    return schemas


@pytest.mark.parametrize("condition", CONDITIONS, ids=str)
@pytest.mark.parametrize("form", HOLDING)
def test_each_schema_is_read_once_also_where_references_lead_through(form: str, condition: object):
    for keyword, through in product(KEYWORDS, KEYWORDS):
        schemas = nested(keyword, HOLDING[form], condition)
        schemas[-1]["$ref"] = f"#/{keyword}/{through}"
        most = 1
        try:
            effective(schemas[-1])
        except InvalidValue:
            most = 2  # the message has the value of a keyword
        assert schemas[-1].num_reads == 1
        assert max(schema.num_reads for schema in schemas) <= most, (keyword, through)


def conditions(num_levels: int, inner: Any = True) -> dict[str, Any]:
    """A schema in `then` of the next, and so on, with a reference that leads through `then`."""
    for _ in range(num_levels):
        inner = {"$defs": {"a": {"then": inner, "else": True, "if": True}}}
    return {"type": "object", "$defs": {"r": {"$ref": "#/then"}, "b": inner}}


WIDE = {"$defs": {str(number): {} for number in range(18_000)}}
COSTLY: dict[str, Any] = {
    "conditions": conditions(18),
    "wide conditions": conditions(18, WIDE),
    "a long name": {"$defs": {"a" * 100_000: {"allOf": [0] * 50_000}}, "type": "object"},
    "long names": {"$defs": {"a" * 50_000: {"$defs": {"b" * 50_000: {"allOf": [0] * 50_000}}}}, "type": "object"},
    "references": {"$defs": {str(n): {"$ref": f"#/$defs/{n + 1}"} for n in range(6_000)}, "type": "object"},
    "names needed": {"required": [str(n) for n in range(10_000)], "dependencies": {str(n): [] for n in range(10_000)}},
}  # fmt: skip


def seconds(run: Callable[[], object]) -> float:
    """The processor time of `run`, which may reject what it gets; the least of three, as others need the caches too."""
    taken = list[float]()
    for _ in range(3):
        started = time.thread_time()
        with suppress(InvalidValue):
            run()
        taken.append(time.thread_time() - started)
    return min(taken)


@pytest.mark.parametrize("name", COSTLY)
def test_a_costly_schema_is_read_at_once(name: str):
    text = json.dumps(COSTLY[name], separators=(",", ":"))
    assert len(text) <= MAX_SCHEMA_BYTES
    assert seconds(lambda: grammar_of(StructuredOutputs(json=text))) < MOST_S


@pytest.mark.parametrize("name", COSTLY)
def test_a_tool_with_a_costly_schema_is_read_at_once(name: str):
    parameters = {"type": "object", **COSTLY[name]}
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters, "strict": True}}
    hermes = FORMATS["hermes"]
    use = choose_tools([tool], "required", None, hermes)
    assert seconds(lambda: use.grammar(AnswerFormat(hermes))) < MOST_S


LARGEST: dict[str, StructuredOutputs] = {
    "regex: brackets": StructuredOutputs(regex="(" * MAX_SOURCE_BYTES),
    "regex: what Lark escapes": StructuredOutputs(regex="/" * MAX_SOURCE_BYTES),
    "GBNF: open sets": StructuredOutputs(grammar='root ::= "a" ' + "[" * 65_000),
    "GBNF: rules": StructuredOutputs(grammar="root ::= x\n" + 'x ::= "a"\n' * 6_500),
    "Lark: brackets": StructuredOutputs(grammar="start: " + "(" * 65_000),
    "Lark: schemas": StructuredOutputs(grammar="start: " + "%json {} " * 7_000),
}


@pytest.mark.parametrize("name", LARGEST)
def test_the_largest_text_beside_tools_is_read_at_once(name: str):
    """Alone only its size is looked at; beside tools it becomes a rule, on a thread for texts too."""
    hermes, outputs = FORMATS["hermes"], LARGEST[name]
    use = choose_tools([{"type": "function", "function": {"name": "f"}}], "auto", None, hermes)
    assert seconds(lambda: use.grammar(AnswerFormat(hermes), outputs)) < MOST_TEXT_S
