"""Turns of a conversation as the model's chat template takes them.

Clients send what templates may not know: several system messages, one behind the first question, none or several
messages of a role in a row, a question behind a call that was cut, no alternation. What a template does with these is
found out once, when it is loaded, from sample chats (see `template_trial`); it rejects a chat, or leaves out what it
does not expect. Nothing is decided by the messages of a request, so a conversation that goes on keeps its prompt, and
the prompt's tokens stay in the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain, groupby, pairwise, takewhile
from typing import Any, NamedTuple

Message = dict[str, Any]
SEPARATOR = "\n\n"
_TEXTS = ("content", "reasoning_content", "thinking")
_CALL: Message = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"id": "c23456789", "type": "function", "function": {"name": "count", "arguments": {"text": "a"}}}],
}
_RESULT: Message = {"role": "tool", "content": "A sample result.", "tool_call_id": "c23456789", "name": "count"}


class Turns(NamedTuple):
    """The turns that a template takes. Any thread.

    Attributes:
        has_system: a system message; else its text is in front of the first one of the user.
        has_systems: several system messages at the beginning; else they are one.
        has_later_systems: a system message anywhere; else it becomes one of the user.
        has_equal_roles: several messages of the user or the assistant in a row; else they are one.
        has_late_question: a beginning without a question, behind system messages; else an empty one is there.
        has_open_calls: calls or their results in front of a message of the user; else an empty answer is between.
    """

    has_system: bool = True
    has_systems: bool = True
    has_later_systems: bool = True
    has_equal_roles: bool = True
    has_late_question: bool = True
    has_open_calls: bool = True

    def fit(self, messages: Sequence[Message]) -> list[Message]:
        """Return the messages as the template takes them; the text of those that become one has a blank line between.

        Results of calls stay as they are, each with its call.
        """
        if self == AS_GIVEN:
            return list(messages)
        first = list(takewhile(_is_system, messages))
        later = messages[len(first) :]
        if not self.has_system and first:
            first = [{**_joined(first), "role": "user"}]
            if later and _role(later[0]) == "user":
                first, later = [_joined([first[0], later[0]])], later[1:]
        elif not self.has_systems and first:
            first = [_joined(first)]
        if not self.has_later_systems:
            later = [{**message, "role": "user"} if _is_system(message) else message for message in later]
        fitted = [*first, *later]
        if not self.has_equal_roles:
            fitted = list(_without_equal_roles(fitted))
        if not self.has_late_question:
            num_systems = sum(1 for _ in takewhile(_is_system, fitted))
            if not fitted[num_systems:] or _role(fitted[num_systems]) != "user":
                fitted.insert(num_systems, {"role": "user", "content": ""})
        return fitted if self.has_open_calls else list(_with_answers(fitted))


AS_GIVEN = Turns()
"""Every conversation is rendered as it is."""


def turns_of(shows: Callable[[Sequence[Message]], bool]) -> Turns:
    """Return the turns that a template takes; `shows` tells whether it renders a chat with all its texts.

    A template that does not show a plain chat is too peculiar to be judged.
    """
    system, user, answer = (partial(_sample, role) for role in ("system", "user", "assistant"))
    if not shows([user(1), answer(2), user(3)]):
        return AS_GIVEN
    has_system = shows([system(1), user(2)])
    return Turns(
        has_system=has_system,
        has_systems=shows([system(1), system(2), user(3)]),
        has_later_systems=shows([system(1), user(2), system(3)]) and shows([user(1), answer(2), system(3), user(4)]),
        has_equal_roles=shows([user(1), user(2)]) and shows([user(1), answer(2), answer(3), user(4)]),
        has_late_question=shows([answer(1), user(2)]) and (shows([system(1)]) or not has_system),
        has_open_calls=all(
            shows([user(1), *called, user(4)]) or not shows([user(1), *called, answer(3), user(4)])
            for called in ([_CALL], [_CALL, _RESULT])
        ),
    )


def _sample(role: str, number: int) -> Message:
    """Return a message with a text that no template has by itself."""
    return {"role": role, "content": f"Sample text {number} of {role}."}


def _role(message: Message) -> object:
    return message.get("role")  # messages from Python are not checked


def _is_system(message: Message) -> bool:
    return _role(message) == "system"


def _without_equal_roles(messages: Sequence[Message]) -> Iterator[Message]:
    for role, group in groupby(messages, _role):
        if role in ("user", "assistant"):
            yield _joined(list(group))
        else:
            yield from group


def _with_answers(messages: Sequence[Message]) -> Iterator[Message]:
    """Yield messages with an empty answer between calls, or their results, and a message of the user."""
    yield from messages[:1]
    for before, message in pairwise(messages):
        if _role(message) == "user" and (_role(before) == "tool" or before.get("tool_calls")):
            yield {"role": "assistant", "content": ""}
        yield message


def _joined(messages: Sequence[Message]) -> Message:
    """Return messages as one, with the other fields of the first that has them."""
    if len(messages) == 1:
        return messages[0]
    joined: dict[str, Any] = {}
    for message in messages:
        joined = {**message, **joined}
    for name in _TEXTS:
        if values := [message[name] for message in messages if message.get(name)]:
            joined[name] = _joined_texts(values)
    if calls := [call for message in messages for call in message.get("tool_calls") or ()]:
        joined["tool_calls"] = calls
    return joined


def _joined_texts(values: Sequence[Any]) -> object:
    """Return texts as one, or a list of parts if one of them is a list of parts."""
    if all(isinstance(value, str) for value in values):
        return SEPARATOR.join(values)
    parts = ([{"type": "text", "text": value}] if isinstance(value, str) else value for value in values)
    return [*chain.from_iterable(parts)]
