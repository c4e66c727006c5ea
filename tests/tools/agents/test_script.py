"""The script of the model: it reads, edits and answers with the tools of each client, from the prompt alone."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.checkpoint.checkpoint_folder import EMBEDDED
from app.checkpoint.names import resolve
from app.checkpoint.text_files import FolderText
from app.config.settings import make_config
from app.text.entry.frontend import TextFrontend
from app.text.template.chat_template import RenderOptions
from tools.agents.script import (
    EDITING,
    ENDING,
    KITS,
    READING,
    TITLE,
    Kit,
    answer_to,
    kit_for,
    line,
    question,
    report,
    thought,
    tools_of,
)
from tools.agents.scripted_server import TEMPLATE

FILE = "/home/x/note.txt"
ENDED = thought(ENDING)


@pytest.fixture(scope="module")
def template():
    settings = make_config({"model": EMBEDDED, "chat_template": str(TEMPLATE)}).model
    return TextFrontend.load(settings, FolderText(resolve(EMBEDDED))).chat_template


def tool(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}


def asked(bird: str) -> dict[str, Any]:
    return {"role": "user", "content": question(FILE, bird)}


def called(answer: str) -> dict[str, Any]:
    """The call of an answer, behind its reasoning."""
    reasoning, _, answer = answer.partition("\n\n")
    assert reasoning in [thought(text).strip() for text in (READING, EDITING)]
    assert answer.startswith("<tool_call>\n") and answer.endswith("\n</tool_call>")
    return json.loads(answer.split("\n")[1])


def did(answer: str, result: str) -> list[dict[str, Any]]:
    """The messages of a call and its result."""
    function = called(answer)
    call = {"id": "c1", "type": "function", "function": {**function, "arguments": json.dumps(function["arguments"])}}
    result_of_it = {"role": "tool", "tool_call_id": "c1", "content": result}
    return [{"role": "assistant", "content": None, "tool_calls": [call]}, result_of_it]


def say(template, messages: list[dict[str, Any]], *names: str) -> str:
    return answer_to(template.render_text(messages, RenderOptions(tools=[tool(name) for name in names])))


@pytest.mark.parametrize("kit", KITS, ids=lambda kit: kit.reads)
def test_a_task_is_a_read_an_edit_and_an_answer_with_what_was_read(template, kit: Kit):
    names, messages = ("other", kit.reads, kit.edits), [asked("stork")]
    read = say(template, messages, *names)
    assert (called(read)["name"], FILE in json.dumps(called(read)["arguments"])) == (kit.reads, True)
    messages += did(read, f"1  # Notes\n3  {line('heron')}")
    edit = say(template, messages, *names)
    assert called(edit)["name"] == kit.edits
    assert all(text in json.dumps(called(edit)["arguments"]) for text in (FILE, line("heron"), line("stork")))
    messages += did(edit, "Done.")
    assert say(template, messages, *names) == ENDED + report(["heron", "stork"])


def test_a_further_task_names_what_earlier_ones_have_seen(template):
    names, messages = ("Read", "Edit"), [asked("stork")]
    for result in (line("heron"), "Done."):
        messages += did(say(template, messages, *names), result)
    messages += [{"role": "assistant", "content": say(template, messages, *names)}, asked("crane")]
    read = say(template, messages, *names)
    assert called(read)["name"] == "Read"
    messages += did(read, "The file is as before.")
    edit = say(template, messages, *names)
    assert called(edit)["arguments"]["old_string"] == line("stork")
    messages += did(edit, "Done.")
    assert say(template, messages, *names) == ENDED + report(["heron", "stork", "crane"])


def test_a_session_that_was_lost_shows(template):
    messages = [asked("crane")]
    for result in (line("stork"), "Done."):
        messages += did(say(template, messages, "Read", "Edit"), result)
    assert say(template, messages, "Read", "Edit") == ENDED + report(["stork", "crane"])


def test_a_result_without_a_bird_is_shown_and_not_edited(template):
    messages = [asked("stork")]
    messages += did(say(template, messages, "Read", "Edit"), "Error: permission denied")
    assert "permission denied" in say(template, messages, "Read", "Edit")


@pytest.mark.parametrize("names", [(), ("Read",), ("Edit", "other")])
def test_without_tools_to_read_and_edit_a_title_is_given(template, names):
    assert say(template, [asked("stork")], *names) == TITLE


def test_a_conversation_without_a_task_gets_a_title(template):
    assert say(template, [{"role": "user", "content": "Hello"}], "Read", "Edit") == TITLE


def test_the_tools_of_a_prompt_are_those_of_the_request(template):
    prompt = template.render_text([asked("stork")], RenderOptions(tools=[tool("a"), tool("b")]))
    assert tools_of(prompt) == {"a", "b"}
    assert kit_for(frozenset({"a", "b"})) is None


def test_system_messages_stay_where_they_are(template):
    middle = {"role": "system", "content": "Two hours are left."}
    text = template.render_text([asked("stork"), middle, asked("crane")])
    assert text.index("by stork") < text.index("Two hours") < text.index("by crane")
