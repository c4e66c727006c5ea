"""Sessions of opencode and Cline, which use the chat route: ten questions each."""

from __future__ import annotations

from typing import Any

from tests.agents.filler import function, listing, text

Messages = list[dict[str, Any]]
QUESTION = "What does the function count_words do, and is it tested?"
_OPENCODE_TOOLS = (
    function("bash", 3600, "command", "description", timeout="number", workdir="string"),
    function("edit", 1700, "filePath", "oldString", "newString", replaceAll="boolean"),
    function("glob", 900, "pattern", path="string"),
    function("grep", 1200, "pattern", path="string", include="string"),
    function("read", 1700, "filePath", offset="number", limit="number"),
    function("skill", 800, "name"),
    function("task", 2600, "description", "prompt", "subagent_type"),
    function("todowrite", 2600, "todos"),
    function("webfetch", 1100, "url", format="string", timeout="number"),
    function("write", 900, "filePath", "content"),
)
_LIMITS = {"stream": True, "stream_options": {"include_usage": True}}


def system(value: str) -> dict[str, Any]:
    """Return a system message."""
    return {"role": "system", "content": value}


def user(*texts: str) -> dict[str, Any]:
    """Return a message of the user: of one text, or of parts."""
    parts = [{"type": "text", "text": each} for each in texts]
    return {"role": "user", "content": texts[0] if len(texts) == 1 else parts}


def assistant(value: str, *calls: dict[str, Any], reasoning: str = "") -> dict[str, Any]:
    """Return an answer as it is sent back."""
    message: dict[str, Any] = {"role": "assistant", "content": value}
    if reasoning:
        message["reasoning_content"] = reasoning
    return message | ({"tool_calls": [*calls]} if calls else {})


def call(number: str, name: str, arguments: str) -> dict[str, Any]:
    """Return a call of a tool."""
    return {"id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": arguments}}


def result(number: str, value: str) -> dict[str, Any]:
    """Return the result of a call."""
    return {"role": "tool", "tool_call_id": f"call_{number}", "content": value}


def opencode() -> dict[str, Any]:
    """Return the transcript of opencode; its first request asks for a title of the session."""
    tools = [{"type": "function", "function": each} for each in _OPENCODE_TOOLS]
    title: Messages = [
        system(text("How to write a title", 1800)),
        user("Write a title for this conversation:"),
        user(QUESTION),
    ]
    beginning: Messages = [system(text("How to work in a terminal", 9000)), user(QUESTION)]
    return {
        "client": "opencode 1.18.33, @ai-sdk/openai-compatible",
        "wire": "chat",
        "path": "/v1/chat/completions",
        "headers": {"user-agent": "opencode/1.18.33"},
        "list": "messages",
        "ignored": [],
        "body": {"model": "served", "max_tokens": 4096, **_LIMITS, "tools": tools, "tool_choice": "auto"},
        "requests": [
            {"adds": title, "is_alone": True, "body": {"tools": None, "tool_choice": None, "max_tokens": 512}},
            *({"adds": messages} for messages in [beginning, *_opencode_later()]),
        ],
    }


def _opencode_later() -> list[Messages]:
    added: list[Messages] = [
        [
            assistant("", call("2", "grep", '{"pattern": "count_words"}'), reasoning="I look for it first."),
            result("2", listing("grep", 2600)),
        ],
        [
            assistant(
                "Both files.",
                call("3a", "read", '{"filePath": "/project/words.py"}'),
                call("3b", "glob", '{"pattern": "*.py"}'),
            ),
            result("3a", listing("words.py", 4200)),
            result("3b", "words.py\ntest_words.py"),
        ],
        [assistant("It counts words, and one test covers it."), user("Add a test.")],
        [
            assistant("", call("5", "bash", '{"command": "python -m pytest -q", "description": "Run tests"}')),
            result("5", "Tool execution aborted"),
            user("Only the test of this file, please."),
        ],
        [
            assistant("", call("6", "write", '{"filePath": "/project/test_words.py", "content": "from words impo')),
            result("6", "The arguments are not valid JSON."),
        ],
        [
            assistant("", call("7", "read", '{"filePath": "/project/coverage.png"}')),
            result("7", "[image left out: this model reads text]"),
        ],
        [assistant("I stop here.", call("8", "bash", '{"command": "ls"}')), user("Go on.")],  # there is no result
        [assistant("I go on."), system("The todo list has changed."), user("Good.")],
    ]
    for turn in range(3, 11):
        number = str(turn + 8)
        added.append([assistant(f"Done, in {turn} files."), user(f"And now file {turn}.")])
        added.append(
            [
                assistant("", call(number, "read", f'{{"filePath": "/project/file{turn}.py"}}')),
                result(number, listing(f"file{turn}.py", 900)),
            ]
        )
    return added


def cline() -> dict[str, Any]:
    """Return the transcript of Cline, whose tools are a part of the system message; calls and results are text."""
    environment = f"<environment_details>\n{text('Open files and the time', 500)}\n</environment_details>"
    beginning: Messages = [
        system(text("How to use tools in XML", 30_000)),
        user(f"<task>\n{QUESTION}\n</task>", environment),
    ]
    added: list[Messages] = [
        [
            assistant("<read_file>\n<path>words.py</path>\n</read_file>"),
            user("[read_file for 'words.py'] Result:", listing("words.py", 4200), environment),
        ],
        [
            assistant("<execute_command>\n<command>python -m pyt"),  # cut
            user(
                "[ERROR] You did not use a tool in your previous response! Please retry with a tool use.", environment
            ),
        ],
        [
            assistant("<browser_action>\n<action>screenshot</action>\n</browser_action>"),
            user("[browser_action] Result:", "[image left out: this model reads text]", environment),
        ],
        [
            assistant(""),
            user("[TASK RESUMPTION] The task was interrupted just now.", environment),
        ],
    ]
    for turn in range(2, 11):
        added.append(
            [
                assistant(f"<attempt_completion>\n<result>Done, in {turn} files.</result>\n</attempt_completion>"),
                user("[attempt_completion] Result:", f"<feedback>\nAnd now file {turn}.\n</feedback>", environment),
            ]
        )
        added.append(
            [
                assistant(f"<read_file>\n<path>file{turn}.py</path>\n</read_file>"),
                user(f"[read_file for 'file{turn}.py'] Result:", listing(f"file{turn}.py", 900), environment),
            ]
        )
    return {
        "client": "Cline, a provider of the kind that OpenAI's API has (read, not run)",
        "wire": "chat",
        "path": "/v1/chat/completions",
        "headers": {"user-agent": "OpenAI/JS"},
        "list": "messages",
        "ignored": [],
        "body": {"model": "served", "temperature": 0, **_LIMITS},
        "requests": [{"adds": messages} for messages in [beginning, *added]],
    }
