"""`python -m benchmarks defaults`: whether a small real model answers plain questions best at its defaults.

SmolLM2-135M (`quire pull smollm2`, 93 MB) is asked forty questions whose answers a program checks, with five seeds each
and seven ways to sample. Exits with 1 when one of them is better than the default by more than its 95 % interval, or
when the model's default is another one.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from app.checkpoint.names import SMOLLM2
from app.commands.measuring.machine import machine
from app.commands.options import Parser
from app.contract.sampling_params import SamplingParams
from app.llm import LLM
from benchmarks.defaults.parameter_sets import OFF, SETS, Share, difference, share_of
from benchmarks.defaults.questions import MAX_TOKENS, QUESTIONS
from benchmarks.figures import write_json
from benchmarks.limits import conclude
from benchmarks.options import make_folder

SEEDS = 5
ROWS = 32
CONTEXT = 512


def add_options(parser: Parser) -> None:
    """Add how many seeds, and where the figures go."""
    parser.add_argument("--seeds", type=int, default=SEEDS, metavar="N", help=f"Seeds of a question, default {SEEDS}.")
    parser.add_argument("--out", type=Path, metavar="DIR", help="Folder for defaults.json, by default not written.")


def run(args: argparse.Namespace) -> int:
    """Ask, print one line for each way to sample, and write the results."""
    if args.out is not None:
        make_folder(args.out, "out")
    llm = LLM(SMOLLM2, max_model_len=CONTEXT, max_num_seqs=ROWS)
    began = time.monotonic()
    rows = {name: measure(llm, values, args.seeds) for name, values in SETS.items()}
    seconds = time.monotonic() - began
    default, *others = compared(rows, args.seeds)
    print(f"{'':<52}{'right':<26}better than the default, paired by question")
    for row in (default, *others):
        print(f"{row['set']:<52}{Share(*row['right'])!s:<26}{Share(*row['better'])}", flush=True)
    print(f"{len(SETS) * len(QUESTIONS) * args.seeds} answers in {seconds:.0f} s")
    if args.out is not None:
        found = {"benchmark": "defaults", "model": SMOLLM2, "machine": machine(), "seconds": round(seconds, 1)}
        write_json(args.out / "defaults.json", found | {"seeds": args.seeds, "sets": [default, *others]})
    return conclude((), faults(llm, others))


def measure(llm: LLM, values: dict[str, Any], num_seeds: int) -> list[int]:
    """Return how many of the answers to each question are right."""
    asked = [(question, seed) for question in QUESTIONS for seed in range(num_seeds)]
    params = [SamplingParams(**(OFF | values), max_tokens=MAX_TOKENS, seed=seed) for _, seed in asked]
    answers = llm.chat([[{"role": "user", "content": question.text}] for question, _ in asked], params, use_tqdm=False)
    right = [question.is_right(one.outputs[0].text) for (question, _), one in zip(asked, answers, strict=True)]
    return [sum(right[first : first + num_seeds]) for first in range(0, len(right), num_seeds)]


def compared(rows: Mapping[str, list[int]], num_seeds: int) -> list[dict[str, Any]]:
    """Return the figures of each way to sample, the default's first."""
    shares = {name: [count / num_seeds for count in counts] for name, counts in rows.items()}
    of_default = next(iter(shares.values()))
    return [
        {
            "set": name,
            "values": SETS[name],
            "right": share_of(sum(counts), len(counts) * num_seeds),
            "better": difference(shares[name], of_default),
            "right_by_question": counts,
        }
        for name, counts in rows.items()
    ]


def faults(llm: LLM, others: list[dict[str, Any]]) -> list[str]:
    """Return a line for each way to sample that is surely better than the default, and for another default."""
    found = [f"{row['set']} is better by {Share(*row['better'])}" for row in others if row["better"][1] > 0]
    chosen = llm.get_default_sampling_params()
    wanted = OFF | next(iter(SETS.values()))
    if any(getattr(chosen, name) != value for name, value in wanted.items()):
        found.append(f"the defaults of {SMOLLM2} are not those that were measured: {llm.engine.model_info.defaults}")
    return found
