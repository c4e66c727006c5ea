"""Conversations as files that the chat page exports and imports, too: JSON (`.json`) and Markdown (`.md`).

The page keeps a conversation as a tree of messages; here it is the branch that is shown. Markdown has no system
message.
"""

from __future__ import annotations

import json
import re
import secrets
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from app.commands.dialog.conversation import Conversation, Message
from app.contract.errors import ConfigurationError

FORMAT, VERSION = "quire.conversations", 1
ENDINGS = (".json", ".md")
MAX_BYTES = 50 * 2**20
TITLE_CHARS = 60
_MARK = re.compile(r"<!-- quire: (?:(conversation|user|assistant)|cut \d{1,6}) -->")
_ESCAPED = re.compile(r"\\+<!-- quire: ")
_FENCES = re.compile(r"`{3,}")
_HEADINGS = {"user": "## Question", "assistant": "## Answer"}


def write_file(path: Path, conversation: Conversation, model: str, *, may_replace: bool = False) -> None:
    """Write a conversation in the format of the file's ending.

    Raises:
        ConfigurationError: the ending is another, the file exists and `may_replace` is false, or it cannot be written.
    """
    write = {".json": _to_json, ".md": _to_markdown}[_ending(path)]
    data = write(conversation, model).encode("utf-8", "replace")  # a server may send halves of characters
    try:
        if may_replace:  # at once: a full disk must not cost what was saved before
            part = path.with_name(f".{path.name}.part")
            part.write_bytes(data)
            part.replace(path)
        else:
            with path.open("xb") as file:
                file.write(data)
    except FileExistsError:
        raise ConfigurationError(f"{path} exists; give another name, or delete it") from None
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error.strerror}") from None


def read_file(path: Path) -> Conversation:
    """Return the conversation of a file; of several, the one that was changed last.

    Raises:
        ConfigurationError: the file cannot be read, or has no conversation; the message says why.
    """
    read = {".json": _of_json, ".md": _of_markdown}[_ending(path)]
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ConfigurationError(f"{path} has more than {MAX_BYTES // 2**20} MB; export fewer conversations")
        return read(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise ConfigurationError(f"{path} has no conversation that Quire has saved or exported") from None


def _ending(path: Path) -> str:
    ending = path.suffix.lower()
    if ending not in ENDINGS:
        raise ConfigurationError(f"the file is {str(path)!r}; its name must end with {' or '.join(ENDINGS)}")
    return ending


def _to_json(conversation: Conversation, model: str) -> str:
    now = round(time.time() * 1000)
    own_id = secrets.token_hex(10)
    messages: list[dict[str, Any]] = []
    for number, turn in enumerate(conversation.turns):
        about = {"state": "done", "model": model} if turn["role"] == "assistant" else {}
        parent = messages[-1]["id"] if messages else None
        written = {"id": secrets.token_hex(10), "conversation": own_id, "parent": parent, "role": turn["role"]}
        messages.append({**written, "text": turn["content"], "createdAt": now + number, **about})
    record = {
        "id": own_id, "title": _title(conversation), "isPinned": False, "createdAt": now,
        "updatedAt": now, "head": messages[-1]["id"] if messages else None,
        "settings": {"system": conversation.system} if conversation.system else {}, "draft": "", "messages": messages,
    }  # fmt: skip
    when = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    archive = {"format": FORMAT, "version": VERSION, "exportedAt": when, "conversations": [record]}
    return json.dumps(archive, indent=1, ensure_ascii=False)


def _of_json(text: str) -> Conversation:
    archive = json.loads(text)
    if archive["format"] != FORMAT or archive["version"] != VERSION:
        raise ValueError("another format")
    record = max(archive["conversations"], key=lambda each: float(each["updatedAt"]))
    messages = {message["id"]: message for message in record["messages"]}
    branch: list[dict[str, Any]] = []
    at = messages.get(record.get("head")) or (record["messages"][-1] if messages else None)
    while at is not None and len(branch) <= len(messages):
        branch.append(at)
        at = messages.get(at.get("parent"))
    turns = [{"role": _role(message["role"]), "content": _content(message)} for message in reversed(branch)]
    system = record.get("settings", {}).get("system", "")
    return Conversation(system if isinstance(system, str) else "", list(_answered(turns)))


def _role(given: object) -> str:
    return {"user": "user", "assistant": "assistant"}[str(given)]


def _content(message: dict[str, Any]) -> str:
    """Return the text of a message, after the text files that were attached to it (as the page sends them)."""
    parts = [f"{file['name']}:\n{_fenced(file['text'])}" for file in message.get("files") or ()]
    return "\n\n".join(part for part in [*parts, f"{message['text']}"] if part)


def _fenced(text: str) -> str:
    longest = max((len(marks) for marks in _FENCES.findall(text)), default=2)
    marks = "`" * (longest + 1)
    return f"{marks}\n{text.removesuffix(chr(10))}\n{marks}"


def _answered(turns: list[Message]) -> Iterator[Message]:
    """Yield questions and answers in turn: without questions that have no answer, and answers without text."""
    for turn, answer in pairwise(turns):
        if (turn["role"], answer["role"]) == ("user", "assistant") and answer["content"]:
            yield from (turn, answer)


def _to_markdown(conversation: Conversation, model: str) -> str:
    parts = [f"<!-- quire: conversation -->\n# {_title(conversation)}"]
    for turn in conversation.turns:
        role = turn["role"]
        parts.append(f"<!-- quire: {role} -->\n{_HEADINGS[role]}\n\n{_escaped(turn['content'])}")
    return "\n\n".join(parts) + "\n"


def _escaped(text: str) -> str:
    lines = text.split("\n")
    return "\n".join(f"\\{line}" if _MARK.fullmatch(line) or _ESCAPED.match(line) else line for line in lines).rstrip()


def _of_markdown(text: str) -> Conversation:
    sections: list[tuple[str | None, list[str]]] = []
    for line in text.replace("\r\n", "\n").split("\n"):
        if mark := _MARK.fullmatch(line):
            sections.append((mark[1], []))
        elif sections:
            sections[-1][1].append(line[1:] if _ESCAPED.match(line) else line)
    if not sections or sections[0][0] != "conversation":
        raise ValueError("no conversation")
    last = max(number for number, (kind, _) in enumerate(sections) if kind == "conversation")
    turns = []
    for kind, lines in sections[last + 1 :]:
        if kind is not None:
            body = lines[1:] if lines and lines[0].startswith("## ") else lines
            turns.append({"role": kind, "content": "\n".join(body).strip()})
    return Conversation("", list(_answered(turns)))


def _title(conversation: Conversation) -> str:
    """Return the beginning of the first question, as the page names a conversation."""
    first = conversation.turns[0]["content"] if conversation.turns else ""
    words = " ".join(first.split())
    return words if len(words) <= TITLE_CHARS else f"{words[: TITLE_CHARS - 1].rstrip()}…"
