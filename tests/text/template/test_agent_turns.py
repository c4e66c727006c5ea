"""Turns of coding agents in every template: all their texts are rendered, and a request's prompt begins the next one.

The order of roles is that of Codex (two developer messages, then two of the user) and of Claude Code (a system message
behind the first question, and later ones behind results), as a conversion to chat messages gives it to templates.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from typing import Any

import pytest

from app.contract.errors import InvalidValue
from app.text.template.chat_template import ChatTemplate, RenderOptions
from app.text.template.template_trial import Findings, _try
from tests.text import templates
from tests.text.toys import template_of

Chat = list[dict[str, Any]]
SOURCES = {name: source for name, source in vars(templates).items() if name.isupper() and isinstance(source, str)}
SOURCES = {name: source for name, source in SOURCES.items() if "messages" in source and "%s" not in source}
SOURCES["WHOLE_CHAT"] = templates.WHOLE_CHAT.read_text()
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"Sample tool {name}.",
            "parameters": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
        },
    }
    for name in ("exec_command", "view_image", "mcp__files__read")
]
IMAGE = "[image left out: this model reads text]"


def system(text: str) -> Chat:
    return [{"role": "system", "content": text}]


def user(*texts: str) -> Chat:
    """A message of the user: one part is a text, several are a list, as conversions write them."""
    parts = [{"type": "text", "text": text} for text in texts]
    return [{"role": "user", "content": texts[0] if len(texts) == 1 else parts}]


def answer(text: str, *calls: tuple[str, str, str], reasoning: str = "") -> Chat:
    """A message of the assistant; a call is its id, the name of the tool and the arguments as text."""
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if calls:
        message["tool_calls"] = [
            {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
            for call_id, name, arguments in calls
        ]
    if reasoning:
        message |= {"reasoning_content": reasoning, "thinking": reasoning}
    return [message]


def result(call_id: str, text: str) -> Chat:
    return [{"role": "tool", "tool_call_id": call_id, "content": text}]


# Each entry is what one request adds to the one before; the answers are the beginnings of all entries but the first.
CODEX = [
    [*system("<codex instructions>"), *system("<codex skills>"), *user("<environment>"), *user("<question 1>")],
    [*answer("<look>", ("call_a1", "exec_command", '{"text": "<list-files>"}')), *result("call_a1", "<listing>")],
    [
        *answer(
            "",
            ("call_b1", "exec_command", '{"text": "<print-notes>"}'),
            ("call_b2", "view_image", '{"text": "<open-picture>"}'),
        ),
        *result("call_b1", "<file>"),
        *result("call_b2", IMAGE),
    ],
    [*answer("<answer 1>"), *user("<question 2>")],
    [*answer("", ("call_c1", "exec_command", '{"text": "<interrupted-run>"}')), *user("<stop, do this>")],
    [*answer("", ("call_d1", "mcp__files__read", '{"text": "<cut-run')), *result("call_d1", "<failed>")],
    [*answer("<answer 3>"), *user("<question 4>")],
]
CLAUDE_CODE = [
    [*system("<claude system>"), *user("<git status>", "<attribution>", "<question 1>"), *system("<environment>")],
    [*answer("<look>", ("toolu_a", "exec_command", '{"text": "<list-files>"}')), *result("toolu_a", "<listing>")],
    [
        *answer(
            "",
            ("toolu_b", "exec_command", '{"text": "<print-notes>"}'),
            ("toolu_c", "view_image", '{"text": "<open-picture>"}'),
        ),
        *result("toolu_b", "<file>"),
        *result("toolu_c", IMAGE),
        *system("<tokens left 1>"),
    ],
    [*answer("<answer 1>"), *user("<question 2>"), *system("<tokens left 2>")],
    [*answer("", ("toolu_d", "exec_command", '{"text": "<cut-run')), *result("toolu_d", "<failed>"), *user("<go on>")],
    [*answer("<answer 2>"), *user("<question 3>")],
    [*answer("", ("toolu_e", "exec_command", '{"text": "<interrupted-run>"}')), *user("<stop>")],
]
AGENTS = {"codex": CODEX, "claude code": CLAUDE_CODE}
REJECTS_SEVERAL_CALLS = {"ONE_CALL"}
"""These say so, and their models are never let write several; the history of another model has them still."""
CALLS, LATER_CALLS, BESIDE_CALLS, SYSTEM = "calls", "calls behind the first", "text beside calls", "system message"
LEFT_OUT: dict[str, set[str]] = {
    "CHATML": {CALLS},
    "GRANITE": {CALLS},
    "PYTHONIC": {BESIDE_CALLS},
    "LFM2": {BESIDE_CALLS},
    "ONE_CALL": {BESIDE_CALLS},
    "FIRST_CALL": {BESIDE_CALLS, LATER_CALLS},
    "MISTRAL_3": {BESIDE_CALLS, SYSTEM},
}
"""What a template of this kind leaves out by its own rule; all others show everything."""
MOVES_TEXTS = {"MISTRAL_3"}
"""The system message is in the last question, and nowhere behind a result."""


@cache
def template(name: str) -> ChatTemplate:
    """The template, as its trial has found it."""
    finding = _try(SOURCES[name])
    assert finding.reason is None
    return template_of(SOURCES[name]).taking(Findings(None, *finding[1:]))


def conversation(name: str, entries: list[Chat]) -> list[Chat]:
    """The entries; for templates that reject several calls, each of these is a step of its own."""
    return [one_by_one(entry) for entry in entries] if name in REJECTS_SEVERAL_CALLS else entries


def one_by_one(entry: Chat) -> Chat:
    first, *rest = entry
    calls = first.get("tool_calls", [])
    if len(calls) < 2:
        return entry
    steps = [[{**first, "tool_calls": [call]}, answered] for call, answered in zip(calls, rest, strict=False)]
    return [message for step in steps for message in step] + rest[len(calls) :]


def requests(entries: list[Chat]) -> Iterator[Chat]:
    """The messages of each request."""
    messages: Chat = []
    for entry in entries:
        messages = [*messages, *entry]
        yield messages


def texts_of(messages: Chat) -> Iterator[tuple[str, str]]:
    """Each text, and what it is."""
    for message in messages:
        content, calls = message["content"], message.get("tool_calls", ())
        kind = BESIDE_CALLS if calls else SYSTEM if message["role"] == "system" else message["role"]
        yield from [(kind, content)] if isinstance(content, str) else [(kind, part["text"]) for part in content]
        for number, call in enumerate(calls):
            text = call["function"]["arguments"].partition('"<')[2].partition(">")[0]
            yield LATER_CALLS if number else CALLS, text


@pytest.mark.parametrize("agent", AGENTS)
@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize("tools", [TOOLS, []], ids=["tools", "no tools"])
def test_all_texts_of_an_agent_are_in_the_prompt(name, agent, tools):
    found = set()
    for messages in requests(conversation(name, AGENTS[agent])):
        text = template(name).render_text(messages, RenderOptions(tools=tools))
        found |= {kind for kind, each in texts_of(messages) if each not in text}
    left_out = LEFT_OUT.get(name, set())
    assert found - {LATER_CALLS if CALLS in left_out else ""} == left_out


@pytest.mark.parametrize("agent", AGENTS)
@pytest.mark.parametrize("name", [name for name in SOURCES if name not in MOVES_TEXTS])
@pytest.mark.parametrize("tools", [TOOLS, []], ids=["tools", "no tools"])
def test_the_prompt_of_a_request_begins_that_of_the_next_one(name, agent, tools):
    """Else no token behind the difference would be found in the cache."""
    prompts = [
        template(name).render(messages, RenderOptions(tools=tools))
        for messages in requests(conversation(name, AGENTS[agent]))
    ]
    for number, (before, after) in enumerate(pairwise(prompts)):
        assert after[: len(before)] == before, f"request {number + 2} begins otherwise"


@pytest.mark.parametrize("name", sorted(REJECTS_SEVERAL_CALLS))
def test_a_template_that_rejects_several_calls_says_so(name):
    assert not template(name).findings.takes_several_calls
    with pytest.raises(InvalidValue, match="only supports single tool-calls"):
        template(name).render_text([message for entry in CODEX[:3] for message in entry], RenderOptions(tools=TOOLS))


@pytest.mark.parametrize("name", SOURCES)
def test_one_part_and_a_text_are_the_same_tokens(name):
    """Claude Code sends the end of a conversation as a list with one part, and later as a text."""
    for messages in requests(conversation(name, CLAUDE_CODE)):
        listed = [
            {**each, "content": [{"type": "text", "text": each["content"]}]}
            if isinstance(each["content"], str) and each["content"]
            else each
            for each in messages
        ]
        options = RenderOptions(tools=TOOLS)
        assert template(name).render(listed, options) == template(name).render(messages, options)


@pytest.mark.parametrize("name", SOURCES)
def test_ids_of_calls_do_not_reach_the_prompt(name):
    """A new session with the same beginning has other ids."""

    def renamed(messages: Chat) -> Chat:
        other = [{**each} for each in messages]
        for each in other:
            if "tool_call_id" in each:
                each["tool_call_id"] = f"other_{each['tool_call_id']}"
            if "tool_calls" in each:
                each["tool_calls"] = [{**call, "id": f"other_{call['id']}"} for call in each["tool_calls"]]
        return other

    options = RenderOptions(tools=TOOLS)
    *_, messages = requests(conversation(name, CODEX))
    assert template(name).render(renamed(messages), options) == template(name).render(messages, options)
