"""`quire chat [MODEL] [--url URL] [--ws]`: a conversation in the terminal."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
from functools import partial

from app.checkpoint.checkpoint_folder import EMBEDDED
from app.commands.dialog.conversation import Conversation
from app.commands.dialog.dialog import Dialog
from app.commands.dialog.history import History
from app.commands.dialog.questions import piped_questions, typed_questions
from app.commands.dialog.responder import Responder
from app.commands.dialog.screens import new_screen
from app.commands.options import (
    NOT_OF_ONE_CHAT,
    Parser,
    add_sampling,
    add_settings,
    one_model,
    read_config,
    read_sampling,
)
from app.config.base_url import read_base_url
from app.config.settings import settings
from app.contract.errors import ConfigurationError
from app.contract.sampling_params import SamplingParams

OF_GUIDE = "It knows Quire alone, and answers in English."
GREETING = "Ask a question. /help lists the commands; Ctrl-C stops an answer, Ctrl-D ends the chat."


def add_options(parser: Parser) -> None:
    """Add the server or the model, and the sampling options."""
    parser.usage = "quire chat [MODEL] [--url URL] [--ws] [OPTIONS]"
    parser.add_argument(
        "served", nargs="?", metavar="MODEL", help="Same as --model; with --url, a model of the server."
    )
    parser.add_argument(
        "--url",
        metavar="URL",
        help="URL of a running server, with or without /v1; by default the model is loaded in this process.",
    )
    parser.add_argument("--ws", action="store_true", help="Use the server's WebSocket instead of server-sent events.")
    parser.add_argument(
        "--api-key",
        dest="server_key",
        metavar="KEY",
        help="API key of the server; by default the first one in QUIRE_API_KEY, else OPENAI_API_KEY.",
    )
    parser.add_argument("--system", metavar="TEXT", help="System message of the conversation.")
    add_sampling(parser)
    add_settings(parser, "model", "sampling", "cache", "scheduler", without=NOT_OF_ONE_CHAT)


def run(args: argparse.Namespace) -> int:
    """Chat until the user ends the conversation."""
    with contextlib.ExitStack() as stack:
        runner = stack.enter_context(asyncio.Runner())
        responder = _local(args, runner, stack) if args.url is None else _remote(args, runner)
        is_interactive = sys.stdin.isatty()
        dialog = Dialog(responder, new_screen(), Conversation(args.system or ""), is_interactive=is_interactive)
        if is_interactive:
            dialog.greet(f"{OF_GUIDE}\n{GREETING}" if responder.model.name == EMBEDDED else GREETING)
            dialog.run(stack.enter_context(contextlib.closing(typed_questions(History(), dialog.say))))
        else:
            dialog.run(piped_questions())
    return 0


def _note(text: str) -> None:
    """Print a note on a line below the answer, before the answer's line end. Only on a terminal."""
    if sys.stdin.isatty():
        print(f"\n({text})", end="", file=sys.stderr, flush=True)


def _remote(args: argparse.Namespace, runner: asyncio.Runner) -> Responder:
    from app.commands.answers.remote import RemoteModels, sse_answer, websocket_answer
    from app.commands.answers.server_connection import read_key

    url = read_base_url(args.url, "--url")
    _check_no_engine_options(args)
    key = read_key(args.server_key)
    answer = partial(websocket_answer, runner, url, key, note=_note) if args.ws else partial(sse_answer, url, key)
    return RemoteModels(url, key, answer, read_sampling(args), one_model(args.served, vars(args).get("model")))


def _check_no_engine_options(args: argparse.Namespace) -> None:
    """Refuse options that a server decides: without a word the user would take them for what acts."""
    given = [item.option for item in settings() if item.name in vars(args) and item.name != "model"]
    if args.config is not None:
        given.append("--config")
    if given:
        raise ConfigurationError(
            f"{given[0]} is for a model in this process, and --url names a server, which has its own settings; leave "
            "one of the two out"
        )


def _local(args: argparse.Namespace, runner: asyncio.Runner, stack: contextlib.ExitStack) -> Responder:
    for option, given in (("--ws", args.ws), ("--api-key", args.server_key)):
        if given:
            raise ConfigurationError(f"{option} needs --url, the server to connect to")
    config = read_config(args, model=args.served)
    params = SamplingParams(**{"max_tokens": None, "repetition_stop": True, **read_sampling(args)})
    from app.commands.answers.local import LocalModels

    return stack.enter_context(contextlib.closing(LocalModels(config, runner, params)))
