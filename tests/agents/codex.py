"""A session of Codex: ten questions, over server-sent events and over a WebSocket."""

from __future__ import annotations

from typing import Any

from tests.agents.filler import PIXEL, function, listing, text

Items = list[dict[str, Any]]
HEADERS = {"originator": "codex_exec", "session-id": "session-1", "thread-id": "thread-1", "x-client-request-id": "1"}
_FUNCTIONS = (
    function("exec_command", 2600, "cmd", workdir="string", yield_time_ms="number", max_output_tokens="number"),
    function("write_stdin", 1600, "session_id", chars="string", yield_time_ms="number"),
    function("update_plan", 1400, "explanation", plan="array"),
    function("request_user_input", 1500, "question", options="array"),
    function("view_image", 900, "path"),
    function("list_resources", 1200, "server", cursor="string"),
    function("read_resource", 1200, "server", "uri"),
)
_AGENTS = (
    function("spawn", 1300, "task", role="string"),
    function("send", 800, "agent", "message"),
    function("wait", 800, "agent", timeout_ms="number"),
    function("list", 500, "filter"),
    function("close", 500, "agent"),
)
_PICTURE = "data:image/png;base64," + PIXEL


def _flat(tool: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "strict": False, **tool}


TOOLS = [
    *map(_flat, _FUNCTIONS),
    {
        "type": "namespace",
        "name": "agents",
        "description": text("agents", 300),
        "tools": [*map(_flat, _AGENTS)],
    },
    {"type": "web_search", "external_web_access": False},
]
BODY = {
    "model": "served",
    "tools": TOOLS,
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "reasoning": {"summary": "auto", "effort": "medium"},
    "store": False,
    "stream": True,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "thread-1",
    "client_metadata": {"turn": "1", "installation": "installation-1"},
}


def message(role: str, number: str, *texts: str) -> dict[str, Any]:
    """Return a message; its id belongs to the session."""
    kind = "output_text" if role == "assistant" else "input_text"
    content = [{"type": kind, "text": each} for each in texts]
    return {"type": "message", "id": f"msg_{number}", "role": role, "content": content}


def reasoning(number: str, summary: str) -> dict[str, Any]:
    """Return reasoning as Codex sends it back: the summary that it has shown."""
    parts = [{"type": "summary_text", "text": summary}]
    return {"type": "reasoning", "id": f"rs_{number}", "summary": parts, "content": None, "encrypted_content": None}


def call(number: str, name: str, arguments: str, **fields: str) -> dict[str, Any]:
    """Return a call of a function."""
    ids = {"id": f"fc_{number}", "call_id": f"call_{number}"}
    return {"type": "function_call", **ids, "name": name, "arguments": arguments, **fields}


def output(number: str, value: object) -> dict[str, Any]:
    """Return the output of a call, a text or a list of parts."""
    return {"type": "function_call_output", "call_id": f"call_{number}", "output": value}


BEGINNING: Items = [
    message("developer", "i", text("How to work in this terminal", 17_000)),
    message("developer", "s", text("Skills of this machine", 2400)),
    message("user", "e", "<environment_context>\n<cwd>/project</cwd>\n<date>2026-11-30</date>\n</environment_context>"),
    message("user", "1", "What does the function count_words do, and is it tested?"),
]


def _later() -> list[Items]:
    """Return what each request after the first one adds."""
    plan = '{"explanation": "Two steps.", "plan": [{"step": "Read", "status": "completed"}]}'
    added: list[Items] = [
        [
            reasoning("2", "I look for the function first."),
            call("2", "exec_command", '{"cmd": "grep -rn count_words ."}'),
            output("2", listing("grep", 2600)),
        ],
        [
            call("3a", "exec_command", '{"cmd": "sed -n 1,80p words.py"}'),
            call("3b", "update_plan", plan),
            output("3a", listing("words.py", 4200)),
            output("3b", "Plan updated"),
        ],
        [message("assistant", "4", "It counts words, and one test covers it."), message("user", "4u", "Add a test.")],
        [
            call("5", "exec_command", '{"cmd": "python -m pytest -q"}'),  # interrupted: there is no output
            message("user", "5u", "<turn_aborted>The user has interrupted the turn.</turn_aborted>"),
            message("user", "5v", "Only the test of this file, please."),
        ],
        [
            call("6", "exec_command", '{"cmd": "cat > test_words.py <<END\\nfrom words import count_w'),  # cut
            output("6", "failed to parse function arguments: EOF while parsing a string"),
        ],
        [
            call("7", "view_image", '{"path": "coverage.png"}'),
            output("7", [{"type": "input_image", "image_url": _PICTURE}]),
        ],
        [
            call("8", "spawn", '{"task": "Run the tests", "role": "tester"}', namespace="agents"),
            output("8", '{"agent": "tester-1"}'),
        ],
        [_search("9"), _found("9")],
        [
            {
                "type": "custom_tool_call",
                "id": "ctc_10",
                "call_id": "call_10",
                "name": "apply_patch",
                "input": "*** Begin Patch\n*** Add File: test_words.py\n+assert True\n*** End Patch",
            },
            {"type": "custom_tool_call_output", "call_id": "call_10", "output": "Done."},
        ],
    ]
    for turn in range(3, 11):
        number = str(turn + 8)
        added.append(
            [
                message("assistant", number, f"Done, in {turn} files."),
                message("user", f"{number}u", f"And now file {turn}."),
            ]
        )
        added.append(
            [
                call(number, "exec_command", f'{{"cmd": "sed -n 1,40p file{turn}.py"}}'),
                output(number, listing(f"file{turn}.py", 900)),
            ]
        )
    return added


def _search(number: str) -> dict[str, Any]:
    ids = {"id": f"tsc_{number}", "call_id": f"call_{number}"}
    return {"type": "tool_search_call", **ids, "arguments": {"query": "calendar"}, "execution": "client"}


def _found(number: str) -> dict[str, Any]:
    """Return a result with a tool that is loaded only now."""
    tools = [_flat(function("calendar_list", 400, "day")) | {"defer_loading": True}]
    return {"type": "tool_search_output", "call_id": f"call_{number}", "tools": tools, "execution": "client"}


def over_http() -> dict[str, Any]:
    """Return the transcript over server-sent events: each request has all items."""
    return {
        "client": "Codex 0.171.0, a provider with wire_api = responses",
        "wire": "responses",
        "path": "/v1/responses",
        "headers": {**HEADERS, "accept": "text/event-stream"},
        "list": "input",
        "ignored": ["tools[8]"],
        "body": BODY,
        "requests": [{"adds": items} for items in [BEGINNING, *_later()]],
    }


def over_websocket() -> dict[str, Any]:
    """Return the transcript over a WebSocket: a frame has what is new, behind the response that it names."""
    sent = [[item for item in items if not _is_of_model(item)] for items in _later()]
    return {
        "client": "Codex 0.171.0, over a WebSocket",
        "wire": "responses_websocket",
        "path": "/v1/responses",
        "headers": HEADERS,
        "list": "input",
        "ignored": [],
        "body": BODY,
        "requests": [
            {"adds": BEGINNING[:1], "body": {"generate": False}},
            *({"adds": items} for items in [BEGINNING[1:], *sent]),
        ],
    }


def _is_of_model(item: dict[str, Any]) -> bool:
    return item.get("role") == "assistant" or item["type"] in (
        "reasoning",
        "function_call",
        "custom_tool_call",
        "tool_search_call",
    )
