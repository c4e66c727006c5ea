"""Tries a stranger's chat template in a process of its own, which it cannot take more from than its limits."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

TRIAL_SECONDS = 2  # of CPU time
TRIAL_BYTES = 2**30
MAX_CHARS = 2**20  # of one sample's prompt
PATIENCE_S = 60.0  # a machine may be busy
_PACKAGE = Path(__file__).resolve().parents[1]
_CHILD = "from app.text.template_trial import main; main()"
_USER = {"role": "user", "content": "What is a token?"}
SAMPLES = (
    [_USER],
    [{"role": "system", "content": "Be brief."}, _USER],
    [_USER, {"role": "assistant", "content": "A piece of text."}, {"role": "user", "content": "Thanks!"}],
)


def is_ours(file: Path) -> bool:
    """Whether a template comes with this package: those are known."""
    return file.resolve().is_relative_to(_PACKAGE)


@cache
def try_template(source: str) -> str | None:
    """Render the sample chats by `source` in a child process; return why it may not be used, or None. Blocks.

    What a template says against a chat (some know no system prompts) is no reason.
    """
    environment = {**os.environ, "PYTHONPATH": str(_PACKAGE.parent)}
    command = [sys.executable, "-c", _CHILD]
    try:
        child = subprocess.run(
            command, input=source.encode("utf-8", "surrogatepass"), capture_output=True, timeout=PATIENCE_S,
            env=environment,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"it takes more than {PATIENCE_S:.0f} seconds"
    if child.returncode == 0:
        return child.stdout.decode("utf-8", "replace").strip() or None
    return f"three short chats take it more than {TRIAL_SECONDS} seconds or {TRIAL_BYTES // 2**20} MiB"


def main() -> None:
    """Render the sample chats by the template on stdin; write why it may not be used to stdout. The child only."""
    from app.text.template_allowance import TemplateTooCostly, allowed
    from app.text.template_sandbox import compile_template

    _limit_itself()
    source = sys.stdin.buffer.read().decode("utf-8", "surrogatepass")
    names = dict.fromkeys(("bos_token", "eos_token", "unk_token", "pad_token"), "<s>")
    template = compile_template(source)
    for messages in SAMPLES:
        try:
            with allowed(sum(len(message["content"]) for message in messages)):
                text = template.render(messages=messages, add_generation_prompt=True, tools=None, **names)
            if len(text) > MAX_CHARS:
                sys.stdout.write(f"a short chat becomes {len(text)} characters")
        except TemplateTooCostly as error:
            sys.stdout.write(error.message or "")
        except MemoryError:
            sys.exit(1)
        except Exception:  # the template refuses this chat, or cannot render it: an error of such requests
            continue


def _limit_itself() -> None:
    try:
        import resource
    except ImportError:  # not a Unix: the bounds inside the sandbox hold alone
        return
    resource.setrlimit(resource.RLIMIT_CPU, (TRIAL_SECONDS, TRIAL_SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (TRIAL_BYTES, TRIAL_BYTES))
