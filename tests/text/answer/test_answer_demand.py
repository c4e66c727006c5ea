"""What answers must satisfy: one grammar for all prompts of a request, in which the client's field is named."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from app.contract.errors import InvalidValue
from app.contract.grammar import Grammar, GrammarKind, StructuredOutputs
from app.contract.sampling_params import SamplingParams
from app.text.answer.answer_demand import AnswerDemand, Requested
from app.text.answer.answer_format import AnswerFormat
from app.text.answer.tool_use import ToolUse, choose_tools

FORMAT = AnswerFormat.of_template("", {})
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}, "strict": True}}]


def use(choice: str = "auto") -> ToolUse:
    """The tools of a request."""
    return choose_tools(TOOLS, choice, None, FORMAT.calls)


def requested(path: str = "regex", **outputs: str) -> Requested:
    """A field that says what the answer must be."""
    return Requested(StructuredOutputs(**(outputs or {"regex": "a"})), path)


def test_a_grammar_is_made_once_for_all_prompts(monkeypatch: pytest.MonkeyPatch):
    made, make = list[ToolUse](), ToolUse.grammar

    def counted(tools: ToolUse, *of: Any) -> Grammar | None:
        made.append(tools)
        return make(tools, *of)

    monkeypatch.setattr(ToolUse, "grammar", counted)
    demand = AnswerDemand(FORMAT, requested(), use())
    rules = [demand.rules(SamplingParams(), None) for _ in range(3)]
    assert len(made) == 1 and rules[0] == rules[1] == rules[2] and rules[0].grammar is not None


@pytest.mark.parametrize(
    ("demand", "path"),
    [
        (AnswerDemand(FORMAT, requested("guided_regex")), "guided_regex"),
        (AnswerDemand(FORMAT, requested("guided_regex"), use()), "guided_regex"),
        (AnswerDemand(FORMAT, None, use()), "tools"),
        (AnswerDemand(FORMAT, requested()._replace(yields_to_calls=True), use("required")), "tools"),
    ],
)
def test_a_grammar_has_the_path_of_the_field_that_it_comes_from(demand: AnswerDemand, path: str):
    grammar = demand.rules(SamplingParams(), None).grammar
    assert grammar is not None and grammar.param == path == demand.path


def test_nothing_is_demanded_by_default():
    demand = AnswerDemand(FORMAT)
    assert demand.rules(SamplingParams(), None) == (None, None) and demand.schemas is None and demand.parts() == []


def test_errors_of_a_grammar_are_named_by_the_caller():
    @contextmanager
    def naming(path: str) -> Iterator[None]:
        try:
            yield
        except InvalidValue as error:
            raise InvalidValue(f"{path}: {error.message}") from None

    demand = AnswerDemand(FORMAT, requested(regex="a"), naming=naming)
    with pytest.raises(InvalidValue, match="regex: min_tokens"):
        demand.rules(SamplingParams(min_tokens=2), None)
    with pytest.raises(InvalidValue, match=r"regex: "):
        AnswerDemand(FORMAT, requested(json="{"), naming=naming).rules(SamplingParams(), None)


def test_the_parts_are_those_of_the_field_and_of_checked_tools():
    parts = AnswerDemand(FORMAT, requested("guided_regex"), use()).parts()
    assert [(path, grammar.kind) for path, grammar in parts] == [
        ("guided_regex", GrammarKind.REGEX), ("tools[0].function.parameters", GrammarKind.CALLS),
    ]  # fmt: skip
