"""The commands of `quire chat`: lines that begin with a slash. They are never sent to the model."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from app.commands.dialog.conversation import Conversation
from app.commands.dialog.conversation_file import read_file, write_file
from app.commands.dialog.shown_answer import AnswerFigures
from app.config.nearest import nearest
from app.contract.errors import ConfigurationError

if TYPE_CHECKING:
    from app.commands.dialog.dialog import Dialog


class SlashCommand(NamedTuple):
    """One command: what may follow its name, what it does in words, and the function that does it."""

    argument: str
    summary: str
    execute: Callable[[Dialog, str], None]


def execute(dialog: Dialog, line: str) -> None:
    """Execute the command of a line that begins with a slash; say so if there is none of that name.

    Raises:
        QuireError: the command failed; nothing was changed.
    """
    name, _, argument = line.partition(" ")
    command = COMMANDS.get(name) or COMMANDS.get(ALIASES.get(name, ""))
    if command is None:
        dialog.say(
            f"unknown command {name}{nearest(name, COMMANDS)}; /help lists all, //text sends a text with a slash"
        )
    elif argument.strip() and not command.argument:
        dialog.say(f"{name} takes nothing after it")
    else:
        command.execute(dialog, argument.strip())


def _help(dialog: Dialog, argument: str) -> None:
    heads = {f"{name} {command.argument}".rstrip(): command.summary for name, command in COMMANDS.items()}
    width = max(map(len, heads))
    room = max(shutil.get_terminal_size().columns - 1, width + LEAST_SUMMARY)
    lines = [
        textwrap.fill(summary, room, initial_indent=f"{head:<{width}}  ", subsequent_indent=" " * (width + 2))
        for head, summary in heads.items()
    ]
    dialog.tell("\n".join([*lines, "", *TYPING]))


def _system(dialog: Dialog, argument: str) -> None:
    if not argument:
        dialog.say(f"the system message is: {dialog.conversation.system}" if dialog.conversation.system else
                   "there is no system message; /system TEXT sets one")  # fmt: skip
        return
    dialog.conversation.system = "" if argument == '""' else argument
    dialog.say("the system message is set, from the next question on" if dialog.conversation.system else
               "the system message is removed")  # fmt: skip


def _clear(dialog: Dialog, argument: str) -> None:
    dialog.take_up(Conversation(dialog.conversation.system))
    dialog.say("new conversation")


def _save(dialog: Dialog, argument: str) -> None:
    path = _path(argument) if argument else dialog.file
    if path is None:
        raise ConfigurationError("/save needs a file, such as talk.md or talk.json")
    write_file(path, dialog.conversation, dialog.responder.model.name, may_replace=path == dialog.file)
    dialog.file = path
    has_lost = path.suffix.lower() == ".md" and dialog.conversation.system
    dialog.say(f"saved in {path}{', without the system message, which only .json files have' if has_lost else ''}")


def _load(dialog: Dialog, argument: str) -> None:
    if not argument:
        raise ConfigurationError("/load needs a file that /save or the chat page has written")
    path = _path(argument)
    dialog.take_up(read_file(path))  # whose file may have more than was read
    questions = len(dialog.conversation.turns) // 2
    dialog.say(f"loaded from {path}: {questions} question{'s' if questions != 1 else ''} with answers")
    if dialog.conversation.turns:
        dialog.show_last_turn()


def _continue(dialog: Dialog, argument: str) -> None:
    if dialog.conversation.last_answer is None:
        dialog.say("there is no answer to continue yet")
    elif dialog.is_unanswered:
        dialog.say("the last question has no answer to continue; ask it again")
    else:
        dialog.go_on()


def _model(dialog: Dialog, argument: str) -> None:
    if argument:
        dialog.use(argument)
        dialog.say(f"{dialog.responder.model.name} answers from now on")
        return
    current = dialog.responder.model.name
    for name, context in dialog.responder.models():
        about = f", context {context:,} tokens" if context else ""
        dialog.tell(f"{'*' if name == current else ' '} {name}{about}")
    dialog.say("/model NAME changes to another one")


def _stats(dialog: Dialog, argument: str) -> None:
    model = dialog.responder.model
    context = f", context {model.context:,} tokens" if model.context else ""
    about = "about " if dialog.has_uncounted else ""
    lines = [
        f"model      {model.name}{context}",
        f"turns      {len(dialog.conversation.turns) // 2}, {about}{dialog.num_tokens:,} tokens generated in this chat",
    ]
    dialog.tell("\n".join(lines + (_lines_of(dialog.last, model.context) if dialog.last else [])))


def _lines_of(last: AnswerFigures, context: int | None) -> list[str]:
    """Return the lines of `/stats` about the last answer."""
    end, count = last.end, last.end.completion_tokens or last.num_pieces
    lines = [f"last       {count:,} tokens in {last.total_s:.1f} s"]
    if end.completion_tokens is None:
        why = "the server counts no tokens" if last.has_ended else "it was not ended, so its tokens are not counted"
        lines = [f"last       about {count:,} tokens in {last.total_s:.1f} s: {why}"]
    if last.first_s is not None:
        rate = f", then {last.rate:,.1f} a second" if last.rate else ""
        lines.append(f"speed      the first after {last.first_s:.2f} s{rate}")
    if end.prompt_tokens is not None and end.completion_tokens is not None:
        used = end.prompt_tokens + end.completion_tokens
        share = f" of {context:,} ({used / context:.0%})" if context else ""
        lines.append(f"context    {used:,} tokens used{share}")
    return lines


def _quit(dialog: Dialog, argument: str) -> None:
    dialog.is_over = True


def _path(argument: str) -> Path:
    try:
        return Path(argument).expanduser()
    except RuntimeError:  # an unknown user
        return Path(argument)


COMMANDS: Mapping[str, SlashCommand] = {
    "/help": SlashCommand("", "Show this list.", _help),
    "/system": SlashCommand("[TEXT]", 'Show or set the system message; /system "" removes it.', _system),
    "/clear": SlashCommand("", "Begin a new conversation; the system message stays.", _clear),
    "/continue": SlashCommand("", "Go on with the last answer where it ended.", _continue),
    "/save": SlashCommand("FILE", "Save the conversation as .md or .json; the chat page can import both.", _save),
    "/load": SlashCommand("FILE", "Go on with a conversation that /save or the chat page has written.", _load),
    "/model": SlashCommand("[NAME]", "List the models, or change to one.", _model),
    "/stats": SlashCommand("", "Show tokens, speed and how much of the context is used.", _stats),
    "/quit": SlashCommand("", "End the chat; in a terminal the word quit or exit alone does, too.", _quit),
}
ALIASES = {"/new": "/clear", "/exit": "/quit", "/?": "/help"}
WORDS_THAT_QUIT = frozenset(("exit", "quit", ":q"))
"""Lines that end a chat in a terminal without a slash."""
LEAST_SUMMARY = 20
"""Columns that a summary of `/help` has in a narrow terminal, where the lines then wrap as others do."""
TYPING = (
    'A line that ends with \\ goes on with the next one; """ begins and ends a text of several lines.',
    "In a terminal Ctrl-C stops an answer, which is kept, Ctrl-D ends the chat, arrow keys bring back earlier lines.",
)
