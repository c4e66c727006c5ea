"""Grammars: what they cost a decode, and what hostile ones cost before they are rejected.

`python -m benchmarks grammar [--models smollm2,guide] [--rounds N]`. Answers under a mixture of schemas are generated
at batch 1, 8 and 32, and then answers of the same lengths without any: the figure is the share of decode throughput
that is lost, the median of the rounds, which take turns. SmolLM2-135M is in bfloat16, as `make real-model` converts it.

Then each hostile schema, regular expression and grammar is compiled, and its first tokens are drawn, while another
thread ticks: the figures are the CPU seconds of the compilation and of the slowest token, and the longest gap between
ticks, on the clock. Exits 1 when a limit is missed.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from app import LLM
from app.commands.measuring.machine import machine
from app.commands.options import Parser
from app.contract.admission import admit
from app.contract.errors import CannotStart, QuireError
from app.contract.events import Finished
from app.contract.grammar import Grammar, StructuredOutputs
from app.contract.requests import EngineRequest
from app.contract.sampling_params import SamplingParams
from app.loadgen.table import number, table
from app.observe.terminal import own_terminal
from app.runtime.clock import monotonic
from app.runtime.home_cache import home_cache
from app.server.run import SWITCH_INTERVAL_S
from app.text.grammar.cache import GrammarCache
from app.text.grammar.grammar_sources import grammar_of
from benchmarks.figures import RESULTS, write_json
from benchmarks.limits import Verdict, conclude, judge, limits
from benchmarks.options import chosen

BATCHES = (1, 8, 32)
MAX_TOKENS, NUM_PROMPT = 128, 16
TICK_S = 0.001
NUM_HOSTILE_TOKENS = 200


def _object(properties: Mapping[str, Any], required: Sequence[str] | None = None) -> dict[str, Any]:
    names = list(properties) if required is None else list(required)
    return {"type": "object", "properties": properties, "required": names, "additionalProperties": False}


_SHORT = {"type": "string", "maxLength": 20}
_ADDRESS = _object({"street": _SHORT, "number": {"type": "integer"}, "tags": {"type": "array", "items": _SHORT}})
_TREE = {
    "type": "object",
    "properties": {"name": _SHORT, "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
    "required": ["name", "next"],
    "additionalProperties": False,
}
MIXTURE: Mapping[str, Mapping[str, Any]] = {
    "any object": {"type": "object"},
    "free string": {"type": "string", "minLength": 200},
    "strings of 20": _object({f"field_{index}": _SHORT for index in range(12)}),
    "nested": _object({"person": _object({"home": _ADDRESS, "work": _ADDRESS}), "ok": {"type": "boolean"}}),
    "recursive": _TREE,
    "60 optional fields": _object({f"option_{index}": {"type": "integer"} for index in range(60)}, ()),
}
SHORT_STRINGS = {"strings of 20": MIXTURE["strings of 20"]}


class Case(NamedTuple):
    """A figure: a model, a batch, and the schemas of its answers."""

    model: str
    batch: int
    schemas: Mapping[str, Mapping[str, Any]]
    name: str


CASES = [
    *(Case("smollm2", batch, MIXTURE, f"smollm2, batch {batch}") for batch in BATCHES),
    Case("smollm2", 32, SHORT_STRINGS, "smollm2, batch 32, short strings"),
    *(Case("guide", batch, MIXTURE, f"guide, batch {batch}") for batch in (1, 32)),
]


def settings_of(name: str) -> tuple[str, str]:
    """Return model and dtype of a name.

    Raises:
        CannotStart: SmolLM2 has not been converted.
    """
    if name != "smollm2":
        return name, "auto"
    model = str((home_cache() or Path()) / "smollm2" / "bf16")
    if not Path(model).exists():
        raise CannotStart(f"{model} does not exist; `make real-model` makes it.")
    return model, "bfloat16"


def load(name: str) -> LLM:
    """Load a model with seats for the largest batch.

    Raises:
        CannotStart: SmolLM2 has not been converted.
    """
    model, dtype = settings_of(name)
    return LLM(model, dtype, max_num_seqs=max(BATCHES), max_model_len=512, num_kv_blocks=32 * max(BATCHES) + 64)


def generate(llm: LLM, batch: int, requests: Sequence[EngineRequest]) -> tuple[float, dict[str, int]]:
    """Answer requests, `batch` at a time; return the seconds, and the tokens of each answer."""
    engine, waiting, lengths, num_open = llm.engine, list(reversed(requests)), dict[str, int](), 0
    began = time.perf_counter()
    while waiting or num_open:
        while waiting and num_open < batch:
            engine.add(waiting.pop())
            num_open += 1
        for event in engine.step(monotonic()):
            if isinstance(event, Finished):
                lengths[event.request_id] = event.usage.completion_tokens
                num_open -= 1
    return time.perf_counter() - began, lengths


def request(llm: LLM, name: str, params: SamplingParams, grammar: Grammar | None) -> EngineRequest:
    """Return a request whose prompt is like those of no other."""
    rng = random.Random(name)
    prompt = tuple(rng.randrange(300, 3000) for _ in range(NUM_PROMPT))
    resolved = admit(prompt, params, llm.engine.model_info)
    return EngineRequest(name, prompt, resolved, monotonic(), grammar=grammar)


def lost_share(llm: LLM, case: Case, seed: int) -> float:
    """Return the share of decode throughput that grammars cost, at equal lengths of the answers."""
    schemas = list(case.schemas.values())
    grammars = [grammar_of(StructuredOutputs(json=schema)) for schema in schemas]
    leases = [llm.engine.grammars.lease(grammar) for grammar in grammars]
    count = max(len(schemas), 2 * case.batch)
    params = {
        f"{seed}-{i}": SamplingParams(temperature=1.0, top_p=1.0, seed=seed + i, max_tokens=MAX_TOKENS)
        for i in range(count)
    }
    with_s, lengths = generate(
        llm,
        case.batch,
        [request(llm, name, one, grammars[i % len(grammars)]) for i, (name, one) in enumerate(params.items())],
    )
    plain = [
        request(llm, name, replace(one, max_tokens=lengths[name], ignore_eos=True), None)
        for name, one in params.items()
    ]
    without_s, _ = generate(llm, case.batch, plain)
    for lease in leases:
        lease.release()
    return 1 - without_s / with_s


def _rules(count: int) -> str:
    """Return a GBNF grammar whose rules refer to each other."""
    names = ["root", *(f"r{index}" for index in range(1, count))]
    bodies = [f'"a{i}" {names[(i + 1) % count]}? | "b" {names[i * 7 % count]}' for i in range(count)]
    return "\n".join(f"{name} ::= {body}" for name, body in zip(names, bodies, strict=True))


def hostile_grammars() -> dict[str, StructuredOutputs]:
    """Return the grammars that cost the most of each kind, of up to 64 KiB."""
    wide = {f"p{i}": {"type": "string", "maxLength": 9} for i in range(400)}
    deep: dict[str, Any] = {"type": "integer"}
    for _ in range(30):
        deep = _object({"a": deep, "b": {"type": "string"}}, ())
    return {
        "400 optional properties": StructuredOutputs(json=_object(wide, ())),
        "30 nested objects": StructuredOutputs(json=deep),
        "7,000 values": StructuredOutputs(json={"enum": [f"v{i}" for i in range(7000)]}),
        "a string of a million": StructuredOutputs(json={"type": "string", "maxLength": 10**6, "minLength": 10**6 - 1}),
        "many unions": StructuredOutputs(json={"anyOf": [_object({f"k{i}": {"type": "string"}}) for i in range(600)]}),
        "regex of 60 KB": StructuredOutputs(regex="|".join(f"(a{i}b*)+c{{1,{i % 50 + 1}}}" for i in range(3000))),
        "regex with nested repeats": StructuredOutputs(regex="(((a{1,60}b?){1,60}c?){1,60}d?){1,60}"),
        "regex with a long tail": StructuredOutputs(regex="(a|b)*a(a|b){1000}"),
        "ambiguous grammar": StructuredOutputs(grammar='start: a\na: a a | "x"'),
        "ambiguous grammar of words": StructuredOutputs(grammar='start: a\na: a a a | /[a-z]+/ | a " " a'),
        "400 rules": StructuredOutputs(grammar=_rules(400)),
        "64 nested brackets": StructuredOutputs(grammar="root ::= " + "(" * 60 + '"a"' + " )*" * 60),
        "a text of megabytes": StructuredOutputs(grammar=_doubled(14)),
        "nested repeats of a letter": StructuredOutputs(regex="((((a{20}){20}){20}){20})"),
        "grammar of 60 KB": StructuredOutputs(grammar="start: " + " | ".join(f'"w{i}" start?' for i in range(3500))),
    }


def _doubled(times: int) -> str:
    """Return a grammar of one text, which is twice as long with each of `times` rules."""
    rules = [f"a{i}: a{i + 1} a{i + 1}" for i in range(times)]
    return "\n".join(["start: a0", *rules, f'a{times}: "{"hello world " * 160}"'])


class Hostile(NamedTuple):
    """What a hostile grammar cost, in seconds, and how it ended."""

    compile_s: float
    token_s: float
    gap_s: float
    outcome: str


class Ticker:
    """A thread that notes the longest time between two of its ticks."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self._is_over = False
        self._thread = threading.Thread(target=self._tick, daemon=True)

    def __enter__(self) -> Ticker:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._is_over = True
        self._thread.join()

    def _tick(self) -> None:
        last = time.perf_counter()
        while not self._is_over:
            time.sleep(TICK_S)
            now = time.perf_counter()
            self.longest_s, last = max(self.longest_s, now - last), now


def measure_hostile(cache: GrammarCache, wanted: StructuredOutputs) -> Hostile:
    """Compile a grammar, and draw random tokens that it allows."""
    rng, token_s, outcome = random.Random(0), 0.0, "compiled"
    with Ticker() as ticker:
        began = time.thread_time()
        try:
            lease = cache.lease(grammar_of(wanted))
        except QuireError as error:
            return Hostile(time.thread_time() - began, 0.0, ticker.longest_s, f"refused: {error.message[:60]}")
        compile_s = time.thread_time() - began
        matcher = cache.matcher(lease.grammar)
        lease.release()
        assert matcher is not None
        for _ in range(NUM_HOSTILE_TOKENS):
            began = time.thread_time()
            mask = torch.frombuffer(bytearray(matcher.compute_bitmask()), dtype=torch.uint8)
            if matcher.is_error() or matcher.is_stopped():
                outcome = matcher.get_error().partition("\n")[0][:60] or "ended"
                break
            matcher.compute_ff_tokens()
            token_s = max(token_s, time.thread_time() - began)
            places = torch.nonzero(mask).flatten().tolist()
            byte = rng.choice(places)
            bits = [bit for bit in range(8) if int(mask[byte]) >> bit & 1]
            began = time.thread_time()
            matcher.consume_token(8 * byte + rng.choice(bits))
            token_s = max(token_s, time.thread_time() - began)
    return Hostile(compile_s, token_s, ticker.longest_s, outcome)


def add_options(parser: Parser) -> None:
    """Add which models, and how often."""
    parser.add_argument("--models", help="smollm2, guide or both (default)")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each case, default 5")
    parser.add_argument("--threads", type=int, default=2, help="threads of a step, at most; default 2")


def run(args: argparse.Namespace) -> int:
    """Measure, print and write the figures, and judge."""
    torch.set_num_threads(args.threads)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    models = chosen(args.models, ["smollm2", "guide"], "models")
    found: dict[str, list[float]] = {}
    hostile: dict[str, dict[str, Hostile]] = {}
    for model in models:
        llm = load(model)
        cases = [case for case in CASES if case.model == model]
        for turn in range(args.rounds):
            for case in cases:
                share = lost_share(llm, case, 1000 * turn)
                found.setdefault(case.name, []).append(share)
                print(f"{case.name}: {share:.1%}", file=sys.stderr)
        cache = llm.engine.grammars
        hostile[model] = {name: measure_hostile(cache, wanted) for name, wanted in hostile_grammars().items()}
        llm.close()
    _print(found, hostile)
    figures = {
        "lost": found,
        "hostile": {model: {name: one._asdict() for name, one in by.items()} for model, by in hostile.items()},
    }
    write_json(RESULTS / "grammar.json", {"benchmark": "grammar", "machine": machine(), **figures})
    return conclude(verdicts_of(found, hostile))


def verdicts_of(found: Mapping[str, Sequence[float]], hostile: Mapping[str, Mapping[str, Hostile]]) -> list[Verdict]:
    """Hold the figures against their limits; cases without a limit are only reported."""
    required = limits("grammar")
    verdicts = [judge("grammar", name, statistics.median(shares)) for name, shares in found.items() if name in required]
    for model, by_name in hostile.items():
        for name, one in by_name.items():
            what = f"{model}, {name}"
            verdicts += [
                judge("grammar", "hostile: compile", one.compile_s, what),
                judge("grammar", "hostile: token", 1000 * one.token_s, what),
                judge("grammar", "hostile: gap of another thread", 1000 * one.gap_s, what),
            ]
    return verdicts


def _print(found: Mapping[str, Sequence[float]], hostile: Mapping[str, Mapping[str, Hostile]]) -> None:
    rows = [
        [name, f"{statistics.median(shares):.1%}", f"{min(shares):.1%} to {max(shares):.1%}"]
        for name, shares in found.items()
    ]
    print("\n".join(table(own_terminal(), ["decode throughput lost to grammars", "median", "rounds"], rows)))
    rows = [
        [f"{model}: {name}", *(number(1000 * seconds) for seconds in one[:3]), one.outcome]
        for model, by_name in hostile.items()
        for name, one in by_name.items()
    ]
    print("\n".join(table(own_terminal(), ["hostile, ms", "compile", "token", "gap", "outcome"], rows)))
