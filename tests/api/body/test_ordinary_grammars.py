"""No limit of a trial rejects an ordinary grammar: a hundred schemas, tools of assistants, those of stock clients."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from openai.lib._parsing import type_to_response_format_param

from app.text.grammar.cache import GrammarCache
from benchmarks.schemas.cases import cases
from benchmarks.schemas.conversations import conversations
from tests.api import test_openai_javascript, test_openai_parse, test_openai_tools
from tests.api.serving import EOS, VOCAB_SIZE, client_of, make_app

MESSAGES = [{"role": "user", "content": "Hi"}]
DEGREES = {"type": "object", "properties": {"degrees": {"type": "integer"}}, "required": ["degrees"]}
"""The schema of the JavaScript client's tests."""


def required(tools: list[dict[str, Any]]) -> dict[str, Any]:
    """The fields of a chat that must call one of some tools."""
    return {"tools": tools, "tool_choice": "required"}


def under(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    """The fields of a chat whose answer must satisfy a schema."""
    return {"response_format": {"type": "json_schema", "json_schema": {"name": name, "schema": schema}}}


def assistants() -> list[list[dict[str, Any]]]:
    """The tools of each assistant, which several conversations share."""
    found = []
    for conversation in conversations():
        if conversation.tools not in found:
            found.append(conversation.tools)
    return found


def stock() -> Iterator[dict[str, Any]]:
    """The fields that stock clients send in their tests."""
    yield {"response_format": type_to_response_format_param(test_openai_parse.Weather)}
    yield under("weather", DEGREES)
    for tools in (test_openai_parse.TOOLS, test_openai_tools.TOOLS):
        yield required(tools)


async def test_no_ordinary_grammar_is_rejected_at_the_limits_of_a_trial():
    grammars = GrammarCache(is_served=True)
    app = await make_app(grammars=grammars)
    text = app.state.context.text
    assert grammars.load(text.tokenizer, VOCAB_SIZE, (EOS,)) is None
    wanted = [
        *({"response_format": case.response_format} for case in cases()),
        *map(required, assistants()),
        *stock(),
    ]
    async with client_of(app) as client:
        answers = [
            await client.post("/v1/chat/completions", json={"messages": MESSAGES, "max_tokens": 1, **fields})
            for fields in wanted
        ]
    app.state.context.close()
    assert [answer.text for answer in answers if answer.status_code != 200] == []
    assert len(answers) == 100 + 10 + 4
    assert [entry.plain is not None for entry in grammars.entries.by_grammar.values()] == [True] * len(answers), (
        "each was tried"
    )


def test_the_schema_of_the_javascript_client_is_the_one_in_its_tests():
    text = test_openai_javascript.CHECKS.read_text(encoding="utf-8")
    assert re.search(r'properties: \{ degrees: \{ type: "integer" \} \}, required: \["degrees"\]', text)
