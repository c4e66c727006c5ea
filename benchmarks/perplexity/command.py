"""`python -m benchmarks perplexity`: what quantization costs a real model in quality, beside llama.cpp's formats.

The model is SmolLM2-135M (`quire pull smollm2`, 93 MB), the text a former page of the documentation. Each way to
compute the model is compared with bf16, position by position. Exits with 1 when a limit is missed.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from app.checkpoint.names import SMOLLM2
from app.commands.measuring.machine import machine
from app.commands.options import Parser
from benchmarks.figures import write_json
from benchmarks.limits import Verdict, conclude, judge, limits
from benchmarks.options import make_folder
from benchmarks.perplexity import guide, text, ways
from benchmarks.perplexity.scored_model import MAX_TOKENS
from benchmarks.perplexity.scores import Score, Scorer
from benchmarks.perplexity.ways import ModelWays

Scores = dict[str, Score]


def add_options(parser: Parser) -> None:
    """Add the smoke test, how much text, and where the figures go."""
    parser.add_argument("--guide", action="store_true", help="Only a smoke test on the embedded model.")
    parser.add_argument(
        "--windows",
        type=int,
        default=text.NUM_WINDOWS,
        metavar="N",
        help=f"Windows of {MAX_TOKENS} tokens, default {text.NUM_WINDOWS}; limits hold for that many.",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="Seed of the factors of channels, default 0.")
    parser.add_argument("--out", type=Path, metavar="DIR", help="Folder for perplexity.json, by default not written.")


def run(args: argparse.Namespace) -> int:
    """Score every way, print one line each with its verdicts, and write the results."""
    if args.guide:
        return run_guide()
    if args.out is not None:
        make_folder(args.out, "out")
    found, verdicts = measure(SMOLLM2, args.windows, args.seed)
    if args.out is not None:
        write_json(args.out / "perplexity.json", found)
    return conclude(verdicts)


def measure(model: str, num_windows: int, seed: int = 0) -> tuple[dict[str, Any], list[Verdict]]:
    """Print and return the scores of every way to compute a model, and what is required of them."""
    every = ModelWays(model)
    windows = text.windows(every.tokenizer, num_windows)
    difference = every.rescale(windows[0], seed)
    assert difference <= ways.MAX_DIFFERENCE, f"rescaled weights compute something else: logits differ by {difference}"
    scores: Scores = {}
    verdicts: list[Verdict] = []
    scorer: Scorer | None = None
    print(f"{'':<22}{'perplexity':>11}{'to bf16':>9}{'KL':>10}{'same first':>12}")
    for name, load in every.all():
        loaded = load()
        scorer = scorer or Scorer(loaded, windows)
        scores[name] = scorer.score(loaded)
        own = judged(scores, name)
        verdicts += own
        print(_line(scores, name), *map(_remark, own), sep="  ", flush=True)
    return report(model, windows, scores, verdicts) | {"seed": seed, "rescaled_difference": difference}, verdicts


def judged(scores: Mapping[str, Score], name: str) -> list[Verdict]:
    """Hold what was just scored against its limits; what it is compared with was scored before."""
    figures = {name: scores[name].kl}
    for own, other in ((ways.INT8, ways.Q8_0), (ways.INT4, ways.Q4_1)):
        if name == own:
            figures[f"{own}, times {other}"] = scores[own].kl / scores[other].kl
    return [judge("perplexity", limit, figure) for limit, figure in figures.items() if limit in limits("perplexity")]


def report(
    model: str, windows: list[list[int]], scores: Mapping[str, Score], verdicts: list[Verdict]
) -> dict[str, Any]:
    """Return the figures, for perplexity.json."""
    return {
        "benchmark": "perplexity",
        "model": model,
        "text": str(text.FILE.relative_to(text.FILE.parents[2])),
        "tokens": sum(map(len, windows)),
        "machine": machine(),
        "limits": {verdict.limit.name: verdict.limit.value for verdict in verdicts},
        "missed": [verdict.limit.name for verdict in verdicts if verdict.is_missed],
        "ways": [{"way": name, **score._asdict()} for name, score in scores.items()],
    }


def run_guide() -> int:
    """Score the answers of the embedded model in every way, and print one line each."""
    texts = guide.held_out_texts()
    plain, verdicts = 0.0, []
    for name, settings in guide.WAYS.items():
        found = guide.perplexity(texts, **settings)
        plain = plain or found
        print(f"{name:<28}{found:.4f}{found / plain - 1:>+9.2%}", flush=True)
        if name in limits("perplexity"):
            verdicts.append(judge("perplexity", name, found / plain - 1))
    return conclude(verdicts)


def _line(scores: Mapping[str, Score], name: str) -> str:
    score, plain = scores[name], scores[ways.BF16]
    more = score.perplexity / plain.perplexity - 1
    return f"{name:<22}{score.perplexity:>11.3f}{more:>+9.1%}{score.kl:>10.5f}{score.same_first:>12.3f}"


def _remark(verdict: Verdict) -> str:
    limit = verdict.limit
    return f"{limit.text(verdict.figure)}, {limit}: {'met' if verdict.is_met else 'MISSED'}"
