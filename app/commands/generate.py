"""`quire generate PROMPT`."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys

from app.commands.dialog.screens import plain_screen
from app.commands.dialog.shown_answer import ShownAnswer
from app.commands.options import NOT_OF_ONE_CHAT, Parser, add_sampling, add_settings, read_config, read_sampling
from app.config.unicode_text import as_unicode, keep_invalid_bytes
from app.contract.errors import ConfigurationError
from app.contract.sampling_params import SamplingParams


def add_options(parser: Parser) -> None:
    """Add the prompt, the sampling options and the settings of the engine."""
    parser.usage = "quire generate [PROMPT] [OPTIONS]"
    parser.add_argument(
        "prompt", nargs="?", metavar="PROMPT", help="The prompt; `-`, or none in a pipe, reads it from standard input."
    )
    parser.add_argument("--raw", action="store_true", help="Complete PROMPT as plain text, without the chat template.")
    add_sampling(parser)
    add_settings(parser, "model", "sampling", "cache", "scheduler", without=NOT_OF_ONE_CHAT)


def run(args: argparse.Namespace) -> int:
    """Stream the answer to standard output."""
    config = read_config(args)
    sampling = {"max_tokens": None, **read_sampling(args)}
    is_piped = args.prompt is None and not sys.stdin.isatty()
    prompt = _read_prompt(is_raw=args.raw) if is_piped or args.prompt == "-" else args.prompt or ""
    if not args.raw and not prompt.strip():
        raise ConfigurationError("the prompt is empty; write a question, or `-` to read one from standard input")
    from app.commands.answers.local import LocalModel

    with asyncio.Runner() as runner, contextlib.closing(LocalModel(config, runner)) as model:
        if args.raw or not model.can_chat:
            stream = model.complete(prompt, SamplingParams(**sampling))
        else:
            params = SamplingParams(**{"repetition_stop": True, **sampling})
            stream = model.chat([{"role": "user", "content": prompt}], params)
        answer = ShownAnswer(plain_screen())
        answer.read(stream)
    if (words := answer.end_words()) is not None and sys.stderr.isatty():
        print(f"({words})", file=sys.stderr)
    return 0


def _read_prompt(*, is_raw: bool) -> str:
    """Read the prompt; a question does not end with the line end that `echo` adds."""
    keep_invalid_bytes()
    prompt = as_unicode(sys.stdin.read(), "the prompt")
    return prompt if is_raw else prompt.rstrip("\r\n")
