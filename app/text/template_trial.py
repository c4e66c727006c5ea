"""Tries an untrusted chat template in a child process with limits of CPU time and memory, and what chats it takes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from itertools import product
from math import ceil
from pathlib import Path
from threading import Lock
from time import process_time
from typing import Any, NamedTuple

from app.text.turns import AS_GIVEN, Message, Turns, turns_of

TRIAL_SECONDS = 2  # of CPU time
TRIAL_BYTES = 2**30
MAX_CHARS = 2**20  # of the prompt of a sample chat
TIMEOUT_S = 60.0  # of wall time, for a busy machine
_PACKAGE = Path(__file__).resolve().parents[1]
_CHILD = "from app.text.template_trial import main; main()"
_USER = {"role": "user", "content": "What is a token?"}
_PARAMETERS = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
_FUNCTION = {"name": "count_tokens", "description": "Count the tokens of a text.", "parameters": _PARAMETERS}
_CALL = {"id": "123456789", "type": "function", "function": {"name": "count_tokens", "arguments": {"text": "a"}}}
SAMPLES: tuple[list[dict[str, Any]], ...] = (
    [_USER],
    [{"role": "system", "content": "Be brief."}, _USER],
    [_USER, {"role": "assistant", "content": "A piece of text."}, {"role": "user", "content": "Thanks!"}],
    [_USER, {"role": "assistant", "content": None, "tool_calls": [_CALL]},
     {"role": "tool", "content": "1", "tool_call_id": "123456789", "name": "count_tokens"}],
)  # fmt: skip
TOOLS = ({"type": "function", "function": _FUNCTION},)
"""Given to every sample chat the second time."""


def is_bundled(file: Path) -> bool:
    """Whether a template is part of this package, and thus trusted."""
    return file.resolve().is_relative_to(_PACKAGE)


@cache
def trial_of(source: str) -> Trial:
    """Return the trial of a template; each is tried once in a process."""
    return Trial(source)


class Finding(NamedTuple):
    """Why a template must not be used, or None, and the turns of conversations that it takes."""

    reason: str | None
    turns: Turns = AS_GIVEN


class Trial:
    """Renders sample chats with a template in a child process. Any thread.

    A template may reject a chat (some do not support system prompts).
    """

    def __init__(self, source: str) -> None:
        self._source = source
        self._child: subprocess.Popen[bytes] | None = None  # waits for the template
        self._finding: Finding | None = None
        self._lock = Lock()

    def begin(self) -> None:
        """Start the child process, which imports what it needs while the caller does something else."""
        with self._lock:
            if self._child is None and self._finding is None:
                self._child = _start()

    def end(self) -> None:
        """End the child process if nobody has waited for its result."""
        with self._lock:
            child, self._child = self._child, None
            if child is not None:
                with child:
                    child.kill()

    def finding(self) -> Finding:
        """Return what the trial has found. Blocks until the child process ends."""
        with self._lock:
            if self._finding is None:
                child, self._child = self._child or _start(), None
                self._finding = _result(child, self._source)
            return self._finding


def _start() -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(_PACKAGE.parent)}
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", _CHILD], stdin=pipe, stdout=pipe, stderr=pipe, env=environment)


def _result(child: subprocess.Popen[bytes], source: str) -> Finding:
    """Give the child process its template, and wait for what it says."""
    with child:
        try:
            shown, _ = child.communicate(source.encode("utf-8", "surrogatepass"), TIMEOUT_S)
        except subprocess.TimeoutExpired:
            child.kill()
            return Finding(f"it takes more than {TIMEOUT_S:.0f} seconds")
        except BaseException:
            child.kill()
            raise
    if child.returncode == 0:
        reason, turns = json.loads(shown)
        return Finding(reason, Turns(*turns))
    return Finding(f"it takes more than {TRIAL_SECONDS} seconds or {TRIAL_BYTES // 2**20} MiB for a few short chats")


def main() -> None:
    """Try the template on stdin; write what is found to stdout. Child process."""
    _limit_itself()
    try:
        finding = _try(sys.stdin.buffer.read().decode("utf-8", "surrogatepass"))
    except MemoryError:
        sys.exit(1)
    sys.stdout.write(json.dumps(finding))


def _try(source: str) -> Finding:
    """Render the sample chats, with tools too, then those that show which turns are taken."""
    from app.text.template_allowance import TemplateTooCostly, new_allowance
    from app.text.template_sandbox import compile_template

    names = dict.fromkeys(("bos_token", "eos_token", "unk_token", "pad_token"), "<s>")
    template = compile_template(source)

    def render(messages: Sequence[Message], tools: list[Any] | None = None) -> str:
        try:
            with new_allowance(sum(len(message["content"] or "") for message in messages)):
                return template.render(messages=messages, add_generation_prompt=True, tools=tools, **names)
        except (TemplateTooCostly, MemoryError):
            raise
        except Exception:  # the template rejects this chat or cannot render it: requests like it will fail
            return ""

    try:
        longest = max(len(render(messages, tools)) for messages, tools in product(SAMPLES, (None, list(TOOLS))))
        if longest > MAX_CHARS:
            return Finding(f"a short chat becomes {longest} characters")
        return Finding(None, turns_of(lambda chat: _shows(render(chat), chat)))
    except TemplateTooCostly as error:
        return Finding(error.message or "")


def _shows(text: str, messages: Sequence[Message]) -> bool:
    return all(message["content"] in text for message in messages)


def _limit_itself() -> None:
    try:
        import resource
    except ImportError:  # not a Unix: only the limits of the sandbox apply
        return
    limit_s = ceil(process_time()) + TRIAL_SECONDS  # the imports do not count: slow machines spend a second on them
    resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s))
    resource.setrlimit(resource.RLIMIT_AS, (TRIAL_BYTES, TRIAL_BYTES))
