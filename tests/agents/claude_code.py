"""A session of Claude Code: ten questions."""

from __future__ import annotations

import json
from typing import Any

from tests.agents.filler import PIXEL, function, listing, text

Messages = list[dict[str, Any]]
_BILLING = "x-anthropic-billing-header: cc_version=2.1.332.abc; cc_entrypoint=sdk-cli; cch=00000;"
_SIGNATURE = "c2lnbmF0dXJlIG9mIG91cnM="


def _tool(name: str, num_chars: int, *required: str, **optional: str) -> dict[str, Any]:
    made = function(name, num_chars, *required, **optional)
    return {"name": name, "description": made["description"], "input_schema": made["parameters"]}


TOOLS = [
    _tool("Agent", 4200, "description", "prompt", subagent_type="string"),
    _tool("Bash", 6200, "command", timeout="number", description="string", run_in_background="boolean"),
    _tool("Edit", 2000, "file_path", "old_string", "new_string", replace_all="boolean"),
    _tool("Glob", 1300, "pattern", path="string"),
    _tool("Grep", 2900, "pattern", path="string", glob="string", output_mode="string"),
    _tool("Read", 2600, "file_path", offset="number", limit="number"),
    _tool("Skill", 1900, "skill", args="string"),
    _tool("TaskList", 2600, "tasks"),
    _tool("ToolSearch", 1500, "query", max_results="number"),
    _tool("WebFetch", 2100, "url", "prompt"),
    _tool("Write", 1300, "file_path", "content"),
    _tool("Calendar", 1500, "day") | {"defer_loading": True},
]
BODY = {
    "model": "served",
    "max_tokens": 32_000,
    "stream": True,
    "system": [
        {"type": "text", "text": _BILLING},
        {"type": "text", "text": "You help with programs in a terminal.", "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": text("How to help", 12_500), "cache_control": {"type": "ephemeral"}},
    ],
    "tools": TOOLS,
    "thinking": {"type": "adaptive"},
    "output_config": {"effort": "medium"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "metadata": {"user_id": json.dumps({"device_id": "device-1", "session_id": "session-1"})},
}


def block(value: str) -> dict[str, Any]:
    """Return a text block."""
    return {"type": "text", "text": value}


def user(*blocks: dict[str, Any] | str) -> dict[str, Any]:
    """Return a message of the user, of one text or of blocks."""
    content: object = blocks[0] if len(blocks) == 1 and isinstance(blocks[0], str) else [*blocks]
    return {"role": "user", "content": content}


def system(value: str) -> dict[str, Any]:
    """Return a message of the system in the middle of the conversation."""
    return {"role": "system", "content": value}


def assistant(*blocks: dict[str, Any]) -> dict[str, Any]:
    """Return an answer."""
    return {"role": "assistant", "content": [*blocks]}


def thinking(value: str) -> dict[str, Any]:
    """Return reasoning, with the signature that it came with."""
    return {"type": "thinking", "thinking": value, "signature": _SIGNATURE}


def use(number: str, name: str, **arguments: object) -> dict[str, Any]:
    """Return a call of a tool."""
    return {"type": "tool_use", "id": f"toolu_{number}", "name": name, "input": arguments}


def result(number: str, content: object, **fields: object) -> dict[str, Any]:
    """Return the result of a call."""
    return {"type": "tool_result", "tool_use_id": f"toolu_{number}", "content": content, **fields}


def transcript() -> dict[str, Any]:
    """Return the transcript."""
    return {
        "client": "Claude Code 2.1.332, claude -p",
        "wire": "messages",
        "path": "/v1/messages?beta=true",
        "headers": {"anthropic-version": "2023-06-01", "anthropic-beta": "context-management-2025-06-27"},
        "list": "messages",
        "ignored": ["context_management"],
        "body": BODY,
        "requests": [{"adds": messages} for messages in [_beginning(), *_later()]],
    }


def _beginning() -> Messages:
    reminder = "<system-reminder>\nOn branch main, nothing to commit.\n</system-reminder>"
    question = "What does the function count_words do, and is it tested?"
    return [
        user(block(reminder), block("<system-reminder>\nAttribution is off.\n</system-reminder>"), block(question)),
        system(text("Environment and skills", 2300)),
    ]


def _later() -> list[Messages]:
    """Return what each request after the first one adds."""
    picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}}
    cut = '{"command": "cat > test_words.py <<END\\nfrom words import count_w'
    added: list[Messages] = [
        [
            assistant(thinking("I look for it first."), use("2", "Grep", pattern="count_words", path="/project")),
            user(result("2", listing("grep", 2600))),
        ],
        [
            assistant(
                block("Both files."), use("3a", "Read", file_path="/project/words.py"), use("3b", "Glob", pattern="*")
            ),
            user(result("3a", listing("words.py", 4200)), result("3b", [block("words.py"), block("test_words.py")])),
            system("<system-reminder>\n980000 tokens are left.\n</system-reminder>"),
        ],
        [assistant(block("It counts words, and one test covers it.")), user("Add a test.")],
        [
            assistant(use("5", "Bash", command="python -m pytest -q")),
            user(
                result("5", "The user does not want this call.", is_error=True), block("[Request interrupted by user]")
            ),
            user("Only the test of this file, please."),
        ],
        [
            assistant(
                use("6", "Bash", raw_arguments=cut)
            ),  # the arguments were cut; they are in an object of the client
            user(result("6", "InputValidationError: the parameter command is missing", is_error=True)),
        ],
        [assistant(use("7", "Read", file_path="/project/coverage.png")), user(result("7", [picture]))],
        [
            assistant(use("8", "ToolSearch", query="calendar")),
            user(result("8", [{"type": "tool_reference", "tool_name": "Calendar"}])),
        ],
        [assistant(use("9", "Calendar", day="2026-11-30")), user(result("9", "Nothing."))],
    ]
    for turn in range(3, 11):
        number = str(turn + 8)
        added.append(
            [
                assistant(block(f"Done, in {turn} files.")),
                user(f"And now file {turn}."),
                system(f"<system-reminder>\n{990 - turn}000 tokens are left.\n</system-reminder>"),
            ]
        )
        added.append(
            [
                assistant(use(number, "Read", file_path=f"/project/file{turn}.py")),
                user(result(number, listing(f"file{turn}.py", 900))),
            ]
        )
    return added
