"""`python -m benchmarks schemas`: do a real model's answers under schemas end and validate, and its calls.

A server with SmolLM2-135M (`quire pull smollm2`, 93 MB) is asked through the `openai` client, at temperature 0.7 and
with fixed seeds: a hundred schemas with at most 1,024 tokens each; fifty questions to assistants with tools, first with
tool_choice `required`, then with `auto`, alone and after the first round's calls and their results. Exits with 1 when a
limit is missed.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from app.checkpoint.names import SMOLLM2
from app.commands.measuring.machine import machine
from app.commands.options import Parser
from benchmarks.figures import write_json
from benchmarks.limits import Verdict, conclude, judge
from benchmarks.options import make_folder
from benchmarks.schemas.cases import Case, cases
from benchmarks.schemas.chats import Answer, ask_all
from benchmarks.schemas.checks import fault_of_json, faults_of_calls, leaked_marks
from benchmarks.schemas.conversations import Conversation, conversations
from benchmarks.server_process import serving

SAMPLING = {"model": SMOLLM2, "temperature": 0.7, "top_p": 1, "max_tokens": 1024}
CONTEXT = 4096
SEEDS_PER_ROUND = 1000


def add_options(parser: Parser) -> None:
    """Add how often, the precision, and where the figures go."""
    parser.add_argument("--rounds", type=int, default=1, metavar="N", help="Rounds with different seeds, default 1.")
    parser.add_argument("--quantization", help="int8 or int4; by default bf16.")
    parser.add_argument("--out", type=Path, metavar="DIR", help="Folder for schemas.json, by default not written.")


def run(args: argparse.Namespace) -> int:
    """Ask, print one line for each fault, and hold the figures against their limits."""
    if args.out is not None:
        make_folder(args.out, "out")
    options = ["--quantization", args.quantization] if args.quantization else []
    rounds: list[dict[str, Any]] = []
    with serving(SMOLLM2, "--max-model-len", str(CONTEXT), *options) as server:
        url = f"http://127.0.0.1:{server.port}"
        for turn in range(args.rounds):
            rounds.append(asyncio.run(measure(url, SEEDS_PER_ROUND * turn)))
            print(", ".join(f"{name} {value}" for name, value in rounds[-1].items()), flush=True)
    if args.out is not None:
        found = {"benchmark": "schemas", "machine": machine(), "quantization": args.quantization, "rounds": rounds}
        write_json(args.out / "schemas.json", found)
    return conclude(verdicts_of(rounds))


async def measure(url: str, seed: int) -> dict[str, int]:
    """Return the figures of one round, and print what is wrong."""
    asked, talks = cases(), conversations()
    answers = await ask_all(url, [body_of(case, seed + index) for index, case in enumerate(asked)])
    called = await ask_all(url, bodies_with_tools(talks, "required", seed))
    after = [continued(talk, answer) for talk, answer in zip(talks, called, strict=True)]
    free = await ask_all(url, bodies_with_tools([*talks, *after], "auto", seed))
    return {
        **_figures_of_schemas(asked, answers),
        **_figures_of_required(talks, called),
        "auto: answers that failed": sum(not answer.finish_reason for answer in free),
        "auto: marks in contents": sum(len(leaked_marks(answer.content)) for answer in free),
        "auto: calls": sum(len(answer.calls) for answer in free),
    }


def body_of(case: Case, seed: int) -> dict[str, Any]:
    """Return the body of a chat that must satisfy a schema."""
    return {**SAMPLING, "messages": case.messages, "response_format": case.response_format, "seed": seed}


def bodies_with_tools(talks: Sequence[Conversation], choice: str, seed: int) -> list[dict[str, Any]]:
    """Return bodies of chats that must or may call tools."""
    return [
        {**SAMPLING, "messages": talk.messages, "tools": talk.tools, "tool_choice": choice, "seed": seed + index}
        for index, talk in enumerate(talks)
    ]


def continued(talk: Conversation, answer: Answer) -> Conversation:
    """Return a conversation after its first call and the call's result, if it has one, with its question once more."""
    if not answer.calls:
        return talk
    call = answer.calls[0]
    function = {"name": call.name, "arguments": call.arguments if answer.finish_reason == "tool_calls" else "{}"}
    calls = [{"id": call.id, "type": "function", "function": function}]
    history: list[dict[str, Any]] = [
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": call.id, "content": '{"status": "done"}'},
        {"role": "assistant", "content": "Done."},
    ]
    return talk._replace(messages=[*talk.messages, *history, talk.messages[-1]])


def verdicts_of(rounds: Sequence[dict[str, int]]) -> list[Verdict]:
    """Hold each round's figures against their limits."""
    required = (
        "schemas: answers that stop",
        "schemas: stopped, invalid",
        "required: complete calls, invalid",
        "auto: answers that failed",
        "auto: marks in contents",
    )
    return [
        judge("schemas", name, figures[name], f"round {turn}")
        for turn, figures in enumerate(rounds)
        for name in required
    ]


def _figures_of_schemas(asked: Sequence[Case], answers: Sequence[Answer]) -> dict[str, int]:
    num_stopped = num_invalid = 0
    for case, answer in zip(asked, answers, strict=True):
        fault = fault_of_json(answer.content, case.schema) if answer.finish_reason == "stop" else None
        num_stopped += answer.finish_reason == "stop"
        num_invalid += fault is not None
        if fault or answer.finish_reason != "stop":
            print(f"  {case.name}: {answer.finish_reason} {fault or ''} ...{answer.content[-60:]!r}")
    return {"schemas: answers that stop": num_stopped, "schemas: stopped, invalid": num_invalid}


def _figures_of_required(talks: Sequence[Conversation], answers: Sequence[Answer]) -> dict[str, int]:
    complete = unfinished = invalid = 0
    for talk, answer in zip(talks, answers, strict=True):
        # An answer that reaches max_tokens may break off within its last call.
        is_cut = answer.finish_reason != "tool_calls"
        last = answer._replace(calls=answer.calls[-1:])
        num_cut = int(is_cut and bool(faults_of_calls(talk, last)))
        whole = answer._replace(calls=answer.calls[: len(answer.calls) - num_cut])
        faults = faults_of_calls(talk, whole)
        complete, unfinished, invalid = complete + len(whole.calls), unfinished + is_cut, invalid + len(faults)
        invalid += not answer.calls
        for fault in faults:
            print(f"  required: {fault}")
    return {
        "required: complete calls": complete,
        "required: complete calls, invalid": invalid,
        "required: answers at max_tokens": unfinished,
    }
