"""Steps and time that answers under schemas take with `--speculative-grammar`, beside those without.

`python -m benchmarks forced_tokens [--models smollm2,guide] [--rounds N]`. The same requests with the same seeds, so
the answers are the same, on two engines in turn: a schema with more keys than values, alone and eight times, and the
mixture of `benchmarks.grammar` at batch 32 with the default number of seats. The figures are the steps, and the share
of the CPU time (of the thread that steps) and of the time that is left: the median of the rounds, the least, the most.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

import torch

from app import LLM
from app.commands.measuring.machine import machine
from app.contract.grammar import StructuredOutputs
from app.contract.sampling_params import SamplingParams
from app.loadgen.table import table
from app.observe.terminal import own_terminal
from app.text.grammar.grammar_sources import grammar_of
from benchmarks.figures import RESULTS, write_json
from benchmarks.grammar import MIXTURE, generate, request, settings_of
from benchmarks.grammar import add_options as add_options  # the same options
from benchmarks.options import chosen

SEATS = 64
MAX_TOKENS = 200
KEYS = ("registration_number", "is_registered", "has_children", "number_of_floors", "year_of_construction", "category")
HEAVY: dict[str, Any] = {
    "type": "object",
    "properties": {
        KEYS[0]: {"type": "integer", "minimum": 0, "maximum": 9999},
        KEYS[1]: {"type": "boolean"},
        KEYS[2]: {"type": "boolean"},
        KEYS[3]: {"type": "integer", "minimum": 0, "maximum": 99},
        KEYS[4]: {"type": "integer", "minimum": 1000, "maximum": 2100},
        KEYS[5]: {"enum": ["detached house", "apartment building", "public building"]},
    },
    "required": list(KEYS),
    "additionalProperties": False,
}


class Case(NamedTuple):
    """Schemas, and how many answers there are at a time."""

    name: str
    batch: int
    schemas: Mapping[str, Mapping[str, Any]]


class Turn(NamedTuple):
    """What one engine took for a case."""

    seconds: float
    cpu_s: float
    num_steps: int
    num_tokens: int


CASES = (
    Case("more keys than values, batch 1", 1, {"heavy": HEAVY}),
    Case("more keys than values, batch 8", 8, {"heavy": HEAVY}),
    Case("mixture, batch 32", 32, MIXTURE),
)


def load(name: str, is_on: bool) -> LLM:
    """Load a model with the default seats."""
    model, dtype = settings_of(name)
    return LLM(model, dtype, speculative_grammar=is_on, max_num_seqs=SEATS, max_model_len=512, num_kv_blocks=32 * SEATS)


def measure(llm: LLM, case: Case, seed: int) -> Turn:
    """Answer the requests of a case."""
    grammars = [grammar_of(StructuredOutputs(json=schema)) for schema in case.schemas.values()]
    leases = [llm.engine.grammars.lease(grammar) for grammar in grammars]
    requests = [
        request(
            llm,
            f"{seed} {i}",
            SamplingParams(temperature=1.0, top_p=1.0, seed=seed + i, max_tokens=MAX_TOKENS),
            grammars[i % len(grammars)],
        )
        for i in range(max(4, 2 * case.batch))
    ]
    before, began = llm.engine.num_steps, time.thread_time()
    seconds, lengths = generate(llm, case.batch, requests)
    cpu_s = time.thread_time() - began
    for lease in leases:
        lease.release()
    return Turn(seconds, cpu_s, llm.engine.num_steps - before, sum(lengths.values()))


def columns(without: Sequence[Turn], with_: Sequence[Turn]) -> list[str]:
    """Return tokens and steps of all turns, and by how much less CPU time and time the second engine took."""
    pairs = list(zip(without, with_, strict=True))
    assert all(one.num_tokens == other.num_tokens for one, other in pairs), "the answers differ"
    counts = [
        sum(one.num_tokens for one in without),
        *(sum(one.num_steps for one in each) for each in (without, with_)),
    ]
    cpu, wall = ([other[i] / one[i] for one, other in pairs] for i in (1, 0))
    return [*map(str, counts), *(f"{median(each):.0%} ({min(each):.0%}-{max(each):.0%})" for each in (cpu, wall))]


def run(args: argparse.Namespace) -> int:
    """Measure, print and write the figures."""
    torch.set_num_threads(args.threads)
    figures: dict[str, object] = {}
    rows: list[list[str]] = []
    for model in chosen(args.models, ["smollm2", "guide"], "models"):
        engines = {is_on: load(model, is_on) for is_on in (False, True)}
        for case in CASES:
            turns: dict[bool, list[Turn]] = {False: [], True: []}
            for turn in range(args.rounds):
                for is_on in (False, True) if turn % 2 else (True, False):
                    turns[is_on].append(measure(engines[is_on], case, 1000 * turn))
            name = f"{model}, {case.name}"
            figures[name] = {
                "without": [one._asdict() for one in turns[False]],
                "with": [one._asdict() for one in turns[True]],
            }
            rows.append([name, *columns(turns[False], turns[True])])
            print(*rows[-1], sep=" | ", file=sys.stderr)
        for llm in engines.values():
            llm.close()
    names = ["forced tokens", "tokens", "steps without", "with", "CPU time", "time"]
    print("\n".join(table(own_terminal(), names, rows)))
    write_json(RESULTS / "forced_tokens.json", {"benchmark": "forced_tokens", "machine": machine(), **figures})
    return 0
