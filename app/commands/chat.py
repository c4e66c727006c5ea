"""`quire chat [--url URL | --model M] [--ws]`: a conversation in the terminal."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from importlib import import_module

from app.commands.answer_end import CHAT_LIMITS, end_words
from app.commands.options import SAMPLING_NAMES, Parser, add_sampling, add_settings, read_config, read_sampling
from app.commands.streamed_text import TextStream
from app.commands.unicode_text import as_unicode, keep_invalid_bytes
from app.contract.errors import ConfigurationError, QuireError
from app.contract.events import StopReason
from app.contract.sampling_params import SamplingParams

Responder = Callable[[list[dict[str, str]]], TextStream]
"""Takes the conversation and yields the next answer as text deltas, or more of the answer that it ends with."""

GREETING = (
    "Ask a question. /new starts a new conversation, Ctrl-C stops an answer, /continue goes on with it, "
    "/quit or Ctrl-D exits."
)


def add_options(parser: Parser) -> None:
    """Add the server or the model, and the sampling options."""
    parser.usage = "quire chat [--url URL | --model M] [--ws] [OPTIONS]"
    parser.add_argument(
        "--url", metavar="URL", help="URL of a running server; by default the model is loaded in this process."
    )
    parser.add_argument("--ws", action="store_true", help="Use the server's WebSocket instead of server-sent events.")
    parser.add_argument(
        "--api-key",
        dest="server_key",
        metavar="KEY",
        help="API key of the server; by default the first one in QUIRE_API_KEY.",
    )
    parser.add_argument("--system", metavar="TEXT", help="System message of the conversation.")
    add_sampling(parser)
    add_settings(parser, "model", "sampling", "cache", "scheduler", without=SAMPLING_NAMES)


def run(args: argparse.Namespace) -> int:
    """Chat until the user ends the conversation."""
    with contextlib.ExitStack() as stack:
        runner = stack.enter_context(asyncio.Runner())
        responder = _remote(args, runner) if args.url else _local(args, runner, stack)
        if sys.stdin.isatty():
            print(GREETING)
        converse(responder, _questions(), args.system)
    return 0


def converse(responder: Responder, questions: Iterator[str], system: str | None = None) -> None:
    """Answer `questions` one after the other on standard output, each with the conversation so far.

    A failed answer prints one line and leaves the conversation as it was before the question. If standard input is not
    a terminal, a failed answer ends the conversation.

    Raises:
        QuireError: an answer failed and standard input is not a terminal.
    """
    start = [{"role": "system", "content": system}] if system else []
    messages = list(start)
    for question in questions:
        if question == "/quit":
            return
        if question == "/new":
            messages = list(start)
            print("(new conversation)")
        elif question.startswith("/") and question != "/continue":
            print(f"(unknown command {question.split()[0]}; use /continue, /new or /quit)")
        elif question:
            try:
                goes_on = question == "/continue"
                messages = _go_on(responder, messages) if goes_on else _ask(responder, messages, question)
            except QuireError as error:
                if not sys.stdin.isatty():
                    raise
                print(f"quire: error: {error.message}", file=sys.stderr)


def _ask(responder: Responder, messages: list[dict[str, str]], question: str) -> list[dict[str, str]]:
    """Print the answer to a question; return the conversation with both."""
    conversation = [*messages, {"role": "user", "content": as_unicode(question, "the question")}]
    return [*conversation, {"role": "assistant", "content": _print_answer(responder(conversation))}]


def _go_on(responder: Responder, messages: list[dict[str, str]]) -> list[dict[str, str]]:
    """Print more of the last answer; return the conversation with the longer one."""
    if not messages or messages[-1]["role"] != "assistant":
        print("(there is no answer to continue)")
        return messages
    *before, last = messages
    return [*before, {**last, "content": last["content"] + _print_answer(responder(messages))}]


def _print_answer(stream: TextStream) -> str:
    """Print an answer while it is generated, and return it; an interrupt ends it early."""
    answer = ""
    try:
        with contextlib.closing(stream):
            for delta in stream:
                answer += delta
                print(delta, end="", flush=True)
        print()
    except KeyboardInterrupt:
        print(" (stopped)")
    return answer


def _note(text: str) -> None:
    """Print a note on a line below the answer, before the answer's line end. Only on a terminal."""
    if sys.stdin.isatty():
        print(f"\n({text})", end="", file=sys.stderr, flush=True)


def _tell_end(reason: str | None, stop_reason: StopReason | None) -> None:
    """Say why the answer is not complete, and that it can go on."""
    words = end_words(reason, stop_reason)
    if words is not None:
        _note(f"{words}; /continue goes on")


def _questions() -> Iterator[str]:
    """Yield the user's lines until the input ends."""
    if sys.stdin.isatty():
        with contextlib.suppress(ImportError):
            import_module("readline")  # makes input() editable
    keep_invalid_bytes()
    while True:
        try:
            yield input("> " if sys.stdin.isatty() else "").strip()
        except EOFError:
            return
        except KeyboardInterrupt:
            print()


def _remote(args: argparse.Namespace, runner: asyncio.Runner) -> Responder:
    from app.commands.remote import sse_answer, websocket_answer

    if "model" in vars(args):
        raise ConfigurationError("--url and --model cannot be used together; give a server or a model")
    key = args.server_key or os.environ.get("QUIRE_API_KEY", "").partition(",")[0] or None
    if key is not None and not key.isascii():
        raise ConfigurationError("the API key has other characters than ASCII, which HTTP cannot send; correct it")
    fields = CHAT_LIMITS | read_sampling(args)
    if args.ws:
        return lambda messages: websocket_answer(runner, args.url, key, messages, fields, _note, _tell_end)
    return lambda messages: sse_answer(args.url, key, messages, fields, _tell_end)


def _local(args: argparse.Namespace, runner: asyncio.Runner, stack: contextlib.ExitStack) -> Responder:
    if args.ws:
        raise ConfigurationError("--ws needs --url, the server to connect to")
    config = read_config(args)
    params = SamplingParams(**{"max_tokens": None, "repetition_stop": True, **read_sampling(args)})
    from app.commands.local import LocalModel

    model = stack.enter_context(contextlib.closing(LocalModel(config, runner)))
    return lambda messages: model.chat(messages, params, _tell_end)
