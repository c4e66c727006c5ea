"""The script of a model that works as an agent: it reads a file, edits it, and answers with what it has seen.

The prompt alone decides what comes next. So the script goes on after a restart of the server, and an answer that names
a bird of an earlier turn shows that the client has sent that turn again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

BEGIN, END = "<|im_start|>", "<|im_end|>"
"""The marks of a message in `scripted.jinja`."""
_QUESTION = re.compile(r"Replace the bird in (\S+) by (\w+)\.")
_BIRD = re.compile(r"bird: (\w+)")
_TOOLS = re.compile(r"<tools>\n(.*?)\n</tools>", re.DOTALL)
TITLE = "A bird in a file"
"""The answer to all that is no task, as to a request for a title."""
READING, EDITING, ENDING = "The file comes first.", "Now the bird is known.", "Both is done."


def question(file: str, bird: str) -> str:
    """Return the task of one turn: another bird for the file."""
    return f"Replace the bird in {file} by {bird}. Then say which birds it has named, in their order."


def report(birds: Sequence[str]) -> str:
    """Return the last answer of a turn."""
    return f"The file has named: {', '.join(birds)}."


def thought(text: str) -> str:
    """Return reasoning as the model writes it, in front of its answer."""
    return f"<think>\n{text}\n</think>\n\n"


def line(bird: str) -> str:
    """Return the line of the file that names a bird."""
    return f"bird: {bird}"


class Message(NamedTuple):
    """A message as the template has written it."""

    role: str
    text: str


@dataclass(frozen=True, slots=True)
class Kit:
    """The tools of an agent that read and edit a file, and their arguments, with places for `file`, `old` and `new`."""

    reads: str
    read: Mapping[str, object]
    edits: str
    edit: Mapping[str, object]

    def call(self, *, is_edit: bool, **texts: str) -> str:
        """Return a call as the model writes it."""
        name, arguments = (self.edits, self.edit) if is_edit else (self.reads, self.read)
        filled = {key: _filled(value, texts) for key, value in arguments.items()}
        return f"<tool_call>\n{json.dumps({'name': name, 'arguments': filled})}\n</tool_call>"


_SED = "sed -i 's/{old}/{new}/' {file}"
_OLD_AND_NEW = {"old_string": "{old}", "new_string": "{new}"}
KITS = (
    Kit("Read", {"file_path": "{file}"}, "Edit", {"file_path": "{file}", **_OLD_AND_NEW}),
    Kit("read", {"filePath": "{file}"}, "edit", {"filePath": "{file}", "oldString": "{old}", "newString": "{new}"}),
    Kit("exec_command", {"cmd": "cat {file}"}, "exec_command", {"cmd": _SED}),
    Kit("shell_command", {"command": "cat {file}"}, "shell_command", {"command": _SED}),
    Kit("shell", {"command": ["sh", "-c", "cat {file}"]}, "shell", {"command": ["sh", "-c", _SED]}),
)
"""Those of Claude Code, opencode and three versions of Codex."""


def answer_to(prompt: str) -> str:
    """Return the next answer to a prompt of `scripted.jinja`."""
    messages = [*messages_of(prompt)]
    kit, task = kit_for(tools_of(prompt)), _last_task(messages)
    if kit is None or task is None:
        return TITLE
    index, file, bird = task
    seen = [found for message in messages if message.role != "user" for found in _BIRD.findall(_body(message))]
    results = [message.text for message in messages[index:] if message.role == "tool"]
    if not results:
        return thought(READING) + kit.call(is_edit=False, file=file)
    if not seen:
        return f"The results of the calls name no bird: {results[-1][:500]}"
    if len(results) == 1:
        return thought(EDITING) + kit.call(is_edit=True, file=file, old=line(seen[-1]), new=line(bird))
    return thought(ENDING) + report(list(dict.fromkeys(seen)))


def messages_of(prompt: str) -> Iterator[Message]:
    """Yield the messages of a prompt."""
    for part in prompt.split(BEGIN)[1:]:
        role, _, text = part.partition("\n")
        yield Message(role, text.partition(END)[0])


def tools_of(prompt: str) -> frozenset[str]:
    """Return the names of the tools that a prompt defines."""
    found = _TOOLS.search(prompt)
    definitions = map(json.loads, found[1].splitlines()) if found else ()
    return frozenset(each["function"]["name"] for each in definitions)


def kit_for(names: frozenset[str]) -> Kit | None:
    """Return the first kit whose tools are all there."""
    return next((kit for kit in KITS if {kit.reads, kit.edits} <= names), None)


def _last_task(messages: Sequence[Message]) -> tuple[int, str, str] | None:
    """Return where the last task stands, and its file and bird."""
    for index in reversed(range(len(messages))):
        if messages[index].role == "user" and (found := _QUESTION.search(messages[index].text)):
            return index, found[1], found[2]
    return None


def _body(message: Message) -> str:
    """Return what a message says beside the tools that a system message defines."""
    return "" if message.role == "system" else message.text


def _filled(value: object, texts: Mapping[str, str]) -> object:
    if isinstance(value, list):
        return [_filled(each, texts) for each in value]
    return str(value).format(**texts)
