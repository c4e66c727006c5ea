"""Tries an untrusted chat template in a child process with limits of CPU time and memory, and finds what it takes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import product
from math import ceil
from pathlib import Path
from threading import Lock
from time import process_time
from types import MappingProxyType
from typing import Any, NamedTuple

from app.contract.errors import CannotStart
from app.text.template.message_form import MessageForm
from app.text.template.template_allowance import TemplateTooCostly, new_allowance
from app.text.template.template_sandbox import compile_template
from app.text.template.turns import AS_GIVEN, Message, Turns, turns_of

TRIAL_SECONDS = (
    10  # of CPU time: usual templates take 0.1 s, and several times that where other systems share the cores
)
TRIAL_BYTES = 2**30
MAX_CHARS = 2**20  # of the prompt of a sample chat
TIMEOUT_S = 120.0  # of wall time, for a busy machine
_EXIT_NO_MEMORY = 3
# Of whoever ends processes of a machine that lacks memory, or is shut down: nothing that a template does.
_FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token")
_PACKAGE = Path(__file__).resolve().parents[2]
_CHILD = "from app.text.template.template_trial import main; main()"
_USER = {"role": "user", "content": "What is a token?"}
_PARAMETERS = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
_FUNCTION = {"name": "count_tokens", "description": "Count the tokens of a text.", "parameters": _PARAMETERS}
_CALLED_WITH = ("one sample text", "another sample text")
_CALLS = [
    {"id": f"{number}23456789", "type": "function", "function": {"name": "count_tokens", "arguments": {"text": text}}}
    for number, text in enumerate(_CALLED_WITH)
]


def with_calls(count: int) -> list[dict[str, Any]]:
    """Return a sample chat in which one message has `count` calls, and their results."""
    calls = _CALLS[:count]
    results = [{"role": "tool", "content": "1", "tool_call_id": call["id"], "name": "count_tokens"} for call in calls]
    return [_USER, {"role": "assistant", "content": None, "tool_calls": calls}, *results]


SAMPLES: tuple[list[dict[str, Any]], ...] = (
    [_USER],
    [{"role": "system", "content": "Be brief."}, _USER],
    [_USER, {"role": "assistant", "content": "A piece of text."}, {"role": "user", "content": "Thanks!"}],
    with_calls(1),
    with_calls(2),
)
TOOLS = ({"type": "function", "function": _FUNCTION},)
"""Given to every sample chat the second time."""
SWITCHES = ("enable_thinking", "thinking")
"""The names that templates have for a variable that turns reasoning on and off."""


def is_bundled(file: Path) -> bool:
    """Return whether a template is part of this package, and thus trusted."""
    return file.resolve().is_relative_to(_PACKAGE)


class Findings(NamedTuple):
    """The findings of a trial: why the template must not be used, and what it takes.

    Attributes:
        reason: why it must not be used; None if it may.
        takes_several_calls: whether a message may have several calls; a template may reject them, or leave them out.
        switches: the variables that turn reasoning on and off.
        reasons_by_default: whether it is on without them.
        turns: the turns of conversations that it takes.
    """

    reason: str | None = None
    takes_several_calls: bool = True
    switches: tuple[str, ...] = ()
    reasons_by_default: bool = True
    turns: Turns = AS_GIVEN

    def asks_for_reasoning(self, variables: Mapping[str, object]) -> bool:
        """Return whether a prompt with these variables may ask for reasoning; True where nothing turns it off."""
        given = [bool(variables[name]) for name in self.switches if name in variables]
        return given[0] if given else self.reasons_by_default


@cache
def trial_of(source: str) -> Trial:
    """Return the trial of a template; each is tried once in a process."""
    return Trial(source)


class Trial:
    """Renders sample chats with a template in a child process. Any thread.

    A template may reject a chat (some do not support system prompts).
    """

    def __init__(self, source: str) -> None:
        self._source = source
        self._child: subprocess.Popen[bytes] | None = None  # waits for the template
        self._findings: Findings | None = None
        self._lock = Lock()

    def begin(self) -> None:
        """Start the child process, which imports what it needs while the caller does something else."""
        with self._lock:
            if self._child is None and self._findings is None:
                self._child = _start()

    def end(self) -> None:
        """End the child process if nobody has waited for its result."""
        with self._lock:
            child, self._child = self._child, None
            if child is not None:
                with child:
                    child.kill()

    def findings(self) -> Findings:
        """Return the findings of the trial. Blocks until the child process ends.

        Raises:
            CannotStart: the machine was too busy for the trial; another one may succeed.
        """
        with self._lock:
            if self._findings is None:
                child, self._child = self._child or _start(), None
                self._findings = _result(child, self._source)
            return self._findings


def _start() -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(_PACKAGE.parent)}
    pipe = subprocess.PIPE
    try:
        return subprocess.Popen([sys.executable, "-c", _CHILD], stdin=pipe, stdout=pipe, stderr=pipe, env=environment)
    except OSError as error:
        raise _busy(f"its process cannot be started: {error.strerror}") from None


def _result(child: subprocess.Popen[bytes], source: str) -> Findings:
    """Give the child process its template, and wait for what it says."""
    with child:
        try:
            shown, _ = child.communicate(source.encode("utf-8", "surrogatepass"), TIMEOUT_S)
        except subprocess.TimeoutExpired:
            child.kill()
            raise _busy(f"not ready after {TIMEOUT_S:.0f} seconds") from None
        except BaseException:
            child.kill()
            raise
    if child.returncode == 0:
        reason, takes_several_calls, switches, reasons_by_default, turns = json.loads(shown)
        return Findings(reason, takes_several_calls, tuple(switches), reasons_by_default, Turns(*turns))
    return Findings(_refusal(child.returncode))


def _refusal(code: int) -> str:
    """Return why a template is refused whose trial has ended with a code.

    Raises:
        CannotStart: it was not the template that ended it.
    """
    if code == -signal.SIGXCPU:
        return f"it takes more than {TRIAL_SECONDS} seconds of processor time for a few short chats"
    if code == _EXIT_NO_MEMORY:
        return f"it takes more than {TRIAL_BYTES // 2**20} MiB for a few short chats"
    if -code in _FROM_OUTSIDE:
        raise _busy(f"its process was ended by signal {-code}")
    return f"its trial failed with code {code}"


def _busy(problem: str) -> CannotStart:
    return CannotStart(
        "The model's chat template could not be tried, because this machine is too busy or short of memory "
        f"({problem}); try again",
        param="model",
    )


def main() -> None:
    """Try the template on stdin, and write the findings to stdout as JSON. Child process."""
    _limit_itself()
    source = sys.stdin.buffer.read().decode("utf-8", "surrogatepass")
    try:
        findings = _try(source)
    except MemoryError:
        sys.exit(_EXIT_NO_MEMORY)
    sys.stdout.write(json.dumps(findings))


def _try(source: str) -> Findings:
    """Render the sample chats with a template."""
    samples = _Samples(source)
    try:
        for messages, tools in product(SAMPLES, ((), TOOLS)):
            if len(text := samples.render(messages, tools) or "") > MAX_CHARS:
                return Findings(f"a short chat becomes {len(text)} characters")
        holds = [samples.holds_calls(count) for count in (1, 2)]
        default = samples.render([_USER])
        turns = turns_of(samples.shows)
        ons, offs = ([samples.render([_USER], variables={name: is_on}) for name in SWITCHES] for is_on in (True, False))
    except TemplateTooCostly as error:
        return Findings(error.message or "it takes too much")
    both = zip(SWITCHES, ons, offs, strict=True)
    switches = {name: off for name, on, off in both if None not in (on, off) and on != off}
    return Findings(None, holds != [True, False], tuple(switches), default not in switches.values(), turns)


class _Samples:
    """Renders sample chats with one template. Child process."""

    def __init__(self, source: str) -> None:
        self._template = compile_template(source)
        self._form = MessageForm(source)

    def render(
        self,
        messages: list[dict[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        variables: Mapping[str, bool] = MappingProxyType({}),
    ) -> str | None:
        """Return the prompt; None if the template rejects this chat or cannot render it: requests like it will fail.

        Raises:
            TemplateTooCostly: it takes too much.
        """
        names = {**dict.fromkeys(_NAMED_TOKENS, "<s>"), **variables}
        try:
            formed, given = self._form.formed(messages, tools)
            with new_allowance(sum(len(message["content"] or "") for message in formed)):
                return self._template.render(messages=formed, add_generation_prompt=True, tools=given, **names)
        except (TemplateTooCostly, MemoryError):
            raise
        except Exception:
            return None

    def shows(self, messages: Sequence[Message]) -> bool:
        """Return whether the prompt of a chat has the texts of all its messages."""
        text = self.render(list(messages)) or ""
        return all(message["content"] in text for message in messages)

    def holds_calls(self, count: int) -> bool:
        """Return whether the prompt of a chat with `count` calls in one message has all of them."""
        text = self.render(with_calls(count), TOOLS) or ""
        return all(argument in text for argument in _CALLED_WITH[:count])


def _limit_itself(cpu_s: int = TRIAL_SECONDS) -> None:
    try:
        import resource
    except ImportError:  # not a Unix: only the limits of the sandbox apply
        return
    limit_s = ceil(process_time()) + cpu_s  # the imports do not count: slow machines spend a second on them
    resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s + 1))  # SIGXCPU first: SIGKILL comes from others, too
    resource.setrlimit(resource.RLIMIT_AS, (TRIAL_BYTES, TRIAL_BYTES))
