"""The command line: finds the command, runs it, and turns every expected failure into one line and an exit code.

Exit codes: 0 done or drained; 2 command line, configuration or model rejected; 70 engine failed; 75 cannot start now.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

from app import __version__
from app.config.nearest import nearest
from app.config.other_names import command_advice
from app.config.unicode_text import as_unicode
from app.contract.errors import CannotStart, ConfigurationError, QuireError, error_line
from app.runtime.standard_streams import open_standard_streams

if TYPE_CHECKING:
    from app.commands.options import Parser

EXIT_REFUSED = ConfigurationError.exit_code
EXIT_ENGINE_FAILED = QuireError.exit_code
EXIT_CANNOT_START = CannotStart.exit_code
EXIT_INTERRUPTED = 130
_OUTPUT_ERRORS = (errno.ENOSPC, errno.EIO, errno.EFBIG, errno.EDQUOT)

COMMANDS = {
    "serve": "Serve a model: chat page, OpenAI-compatible API, WebSocket.",
    "generate": "Generate a completion of a prompt in the terminal.",
    "chat": "Chat with a model in the terminal.",
    "pull": "Download a model of the Hugging Face hub, or `smollm2`.",
    "models": "List the models on this machine: whether they run, as far as headers tell, and how fast at best.",
    "models rm": "Delete a downloaded model.",
    "plan": "Show whether a model runs here, the memory that it needs, and how fast it can be at best.",
    "doctor": "Check whether this machine can run a server with the given settings.",
    "warm": "Compile a model's kernels into the caches, for images and first starts; needs no GPU.",
    "top": "Show the figures of a running server in the terminal, as they change.",
    "bench": "Measure the offline throughput (`quire bench throughput`), or a server (`quire bench serve`).",
    "bench serve": "Send load to a running server with an OpenAI-compatible API, and measure latency and throughput.",
}
"""Each command is a module of `app/commands` (a blank becomes `_`): `add_options(parser)` and `run(args) -> int`."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code. Expected failures are one line on stderr, never a traceback."""
    open_standard_streams()
    return report_failures("quire", lambda: _dispatch(list(sys.argv[1:] if argv is None else argv)))


def report_failures(program: str, run: Callable[[], int]) -> int:
    """Return the exit code of `run`; an expected failure becomes one line on stderr, after `program`, and a code."""
    try:
        return run()
    except QuireError as error:
        return _fail(program, error.message, error.exit_code)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # `quire generate ... | head`
        _discard_output()
        return 0
    except OSError as error:
        if error.errno not in _OUTPUT_ERRORS:
            raise
        _discard_output()
        return _fail(program, f"cannot write the output: {error.strerror}", EXIT_CANNOT_START)


def command_parser(name: str) -> tuple[Parser, ModuleType]:
    """Return the parser of one command and its module; only that command is imported."""
    from app.commands.options import Parser  # with all settings, which `quire --help` does without

    module = import_module(f"app.commands.{name.replace(' ', '_')}")
    parser = Parser(prog=f"quire {name}", description=COMMANDS[name])
    module.add_options(parser)
    return parser, module


def usage() -> str:
    """Return the text of `quire --help`."""
    width = max(map(len, COMMANDS)) + 2
    lines = "".join(f"  {name:<{width}}{summary}\n" for name, summary in COMMANDS.items())
    more = "`quire COMMAND --help` lists the options of a command; `quire --version` prints the version."
    return f"usage: quire COMMAND [OPTIONS]\n\n{lines}\n{more}"


def _dispatch(arguments: list[str]) -> int:
    for number, argument in enumerate(arguments, 1):
        as_unicode(argument, f"argument {number}")
    name = arguments[0] if arguments else "--help"
    if name == "help" and len(arguments) > 1:
        return _dispatch([*arguments[1:], "--help"])
    if name in ("--help", "-h", "help"):
        print(usage())
        return 0
    if name == "--version":
        print(f"quire {__version__}")
        return 0
    if name not in COMMANDS:
        what = "option" if name.startswith("-") else "command"
        advice = command_advice(name) or nearest(name, COMMANDS)
        raise ConfigurationError(f"unknown {what} {name!r}{advice} (see quire --help)")
    num_words = 2 if " ".join(arguments[:2]) in COMMANDS else 1
    parser, module = command_parser(" ".join(arguments[:num_words]))
    return int(module.run(parser.parse(arguments[num_words:])))


def _fail(program: str, message: str, code: int) -> int:
    from app.commands.dialog.screens import print_error

    print_error(error_line(program, message))
    return code


def _discard_output() -> None:
    """Discard all further output, so that flushing the buffer at exit cannot fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
