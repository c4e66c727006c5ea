"""Tries an untrusted chat template in a child process with limits of CPU time and memory."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

TRIAL_SECONDS = 2  # of CPU time
TRIAL_BYTES = 2**30
MAX_CHARS = 2**20  # of the prompt of a sample chat
TIMEOUT_S = 60.0  # of wall time, for a busy machine
_PACKAGE = Path(__file__).resolve().parents[1]
_CHILD = "from app.text.template_trial import main; main()"
_USER = {"role": "user", "content": "What is a token?"}
SAMPLES = (
    [_USER],
    [{"role": "system", "content": "Be brief."}, _USER],
    [_USER, {"role": "assistant", "content": "A piece of text."}, {"role": "user", "content": "Thanks!"}],
)


def is_bundled(file: Path) -> bool:
    """Whether a template is part of this package, and thus trusted."""
    return file.resolve().is_relative_to(_PACKAGE)


@cache
def try_template(source: str) -> str | None:
    """Render sample chats with `source` in a child process; return why it must not be used, or None. Blocks.

    A template may reject a chat (some do not support system prompts).
    """
    environment = {**os.environ, "PYTHONPATH": str(_PACKAGE.parent)}
    command = [sys.executable, "-c", _CHILD]
    try:
        child = subprocess.run(
            command, input=source.encode("utf-8", "surrogatepass"), capture_output=True, timeout=TIMEOUT_S,
            env=environment,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"it takes more than {TIMEOUT_S:.0f} seconds"
    if child.returncode == 0:
        return child.stdout.decode("utf-8", "replace").strip() or None
    return f"it takes more than {TRIAL_SECONDS} seconds or {TRIAL_BYTES // 2**20} MiB for three short chats"


def main() -> None:
    """Render the sample chats with the template on stdin; write why it must not be used to stdout. Child process."""
    from app.text.template_allowance import TemplateTooCostly, new_allowance
    from app.text.template_sandbox import compile_template

    _limit_itself()
    source = sys.stdin.buffer.read().decode("utf-8", "surrogatepass")
    names = dict.fromkeys(("bos_token", "eos_token", "unk_token", "pad_token"), "<s>")
    template = compile_template(source)
    for messages in SAMPLES:
        try:
            with new_allowance(sum(len(message["content"]) for message in messages)):
                text = template.render(messages=messages, add_generation_prompt=True, tools=None, **names)
            if len(text) > MAX_CHARS:
                sys.stdout.write(f"a short chat becomes {len(text)} characters")
        except TemplateTooCostly as error:
            sys.stdout.write(error.message or "")
        except MemoryError:
            sys.exit(1)
        except Exception:  # the template rejects this chat or cannot render it: requests like it will fail
            continue


def _limit_itself() -> None:
    try:
        import resource
    except ImportError:  # not a Unix: only the limits of the sandbox apply
        return
    resource.setrlimit(resource.RLIMIT_CPU, (TRIAL_SECONDS, TRIAL_SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (TRIAL_BYTES, TRIAL_BYTES))
