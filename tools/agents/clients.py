"""The three agents: what tells each one of the server, and what keeps it from asking anyone else."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

MODEL = "scripted"
CONTEXT, OUTPUT = 32_768, 4_096
"""The window and the longest answer that clients are told of, in tokens."""
_SOCKET = "-websocket"
CLAUDE_CODE, CODEX, OPENCODE = "claude-code", "codex", "opencode"


@dataclass(frozen=True, slots=True)
class Setup:
    """A client that speaks one wire.

    Attributes:
        client: its name.
        wire: the API it speaks; the name of one over a WebSocket ends so.
        first: the arguments of the first turn; the question is the last one.
        further: those of a turn that goes on with it.
        variables: of its environment, beside HOME and PATH.
        files: those of its home, by their path there.
    """

    client: str
    wire: str
    first: tuple[str, ...]
    further: tuple[str, ...]
    variables: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)

    @property
    def has_socket(self) -> bool:
        """Whether it speaks over a WebSocket."""
        return self.wire.endswith(_SOCKET)

    @property
    def name(self) -> str:
        """The name of a folder for it."""
        return f"{self.client}-{self.wire}"


def setups(url: str) -> list[Setup]:
    """Return all clients with all their wires, for a server at `url`."""
    return [
        *(_opencode(url, wire, package) for wire, package in _OPENCODE_PACKAGES.items()),
        _claude_code(url),
        _codex(url, has_websocket=False),
        _codex(url, has_websocket=True),
    ]


_OPENCODE_HOME = ".config/opencode"
_PLUGINS = {"@opencode-ai/plugin": "*"}
_OPENCODE_PACKAGES = {
    "chat": "@ai-sdk/openai-compatible",
    "responses": "@ai-sdk/openai",
    "messages": "@ai-sdk/anthropic",
}


def _opencode(url: str, wire: str, package: str) -> Setup:
    limits = {"context": CONTEXT, "output": OUTPUT}
    provider = {
        "npm": package,
        "options": {"baseURL": f"{url}/v1", "apiKey": "none"},
        "models": {MODEL: {"limit": limits, "tool_call": True}},
    }
    config = {
        "model": f"quire/{MODEL}",
        "small_model": f"quire/{MODEL}",
        "enabled_providers": ["quire"],
        "autoupdate": False,
        "share": "disabled",
        "provider": {"quire": provider},
    }
    return Setup(
        OPENCODE,
        wire,
        ("run",),
        ("run", "--continue"),
        {
            "OPENCODE_DISABLE_AUTOUPDATE": "1",
            "OPENCODE_DISABLE_MODELS_FETCH": "1",
            "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
            "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
        },
        {
            f"{_OPENCODE_HOME}/opencode.json": json.dumps(config, indent=2),
            # It fetches the library of its plugins from npm, unless these say that it has it.
            f"{_OPENCODE_HOME}/package-lock.json": json.dumps({"packages": {"": {"dependencies": _PLUGINS}}}),
            f"{_OPENCODE_HOME}/node_modules/.package-lock.json": "{}",
        },
    )


def _claude_code(url: str) -> Setup:
    arguments = ("--print", "--permission-mode", "acceptEdits", "--allowedTools=Read,Edit")
    return Setup(
        CLAUDE_CODE,
        "messages",
        arguments,
        (*arguments, "--continue"),
        {
            "ANTHROPIC_BASE_URL": url,
            "ANTHROPIC_AUTH_TOKEN": "none",
            "ANTHROPIC_MODEL": MODEL,
            "ANTHROPIC_DEFAULT_OPUS_MODEL": MODEL,
            "ANTHROPIC_DEFAULT_SONNET_MODEL": MODEL,
            "ANTHROPIC_DEFAULT_HAIKU_MODEL": MODEL,
            "CLAUDE_CODE_MAX_CONTEXT_TOKENS": str(CONTEXT),
            "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(OUTPUT),
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        },
    )


_CODEX_CONFIG = """\
model = "{model}"
model_provider = "quire"
model_context_window = {context}
check_for_update_on_startup = false

[analytics]
enabled = false

[feedback]
enabled = false

[features]
plugins = false

[model_providers.quire]
name = "Quire"
base_url = "{url}/v1"
wire_api = "responses"
supports_websockets = {has_websocket}
"""


def _codex(url: str, *, has_websocket: bool) -> Setup:
    config = _CODEX_CONFIG.format(model=MODEL, context=CONTEXT, url=url, has_websocket=str(has_websocket).lower())
    # Its own sandbox needs namespaces inside of this one.
    options = ("--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")
    return Setup(
        CODEX,
        f"responses{_SOCKET}" if has_websocket else "responses",
        ("exec", *options),
        ("exec", "resume", "--last", *options),
        files={".codex/config.toml": config},
    )
