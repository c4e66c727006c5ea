"""How far both sides are from what a file's own weights predict in float32.

`python -m benchmarks.cpu.gguf.quality` answers with `side.serve`: the memory of the models ends with its process.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import kl_div, log_softmax

from app.runtime.cores import num_cores
from benchmarks.cpu.instructions import use_kernels
from benchmarks.perplexity.llama_cpp import predict, read_windows
from benchmarks.perplexity.scored_model import MAX_TOKENS, ScoredModel
from benchmarks.side import serve


class Quality(NamedTuple):
    """Mean divergences in nats from the float32 reference, and between the two sides; perplexities.

    Divergences are those among the tokens of which llama.cpp says more than that they are unlikely.
    """

    ours: float
    theirs: float
    between: float
    perplexity: float
    perplexity_of_ours: float
    perplexity_of_theirs: float
    num_positions: int


@torch.inference_mode()
def compare(reference: ScoredModel, ours: ScoredModel, theirs: Path) -> Quality:
    """Compare with the predictions of llama.cpp in the file `theirs`, at their positions."""
    sums = [0.0] * 6
    count = 0
    for window in read_windows(theirs):
        assert len(window.tokens) <= MAX_TOKENS
        targets_T1 = torch.tensor(window.tokens[window.first + 1 :])[:, None]
        exact_TV = _predictions(reference, window.tokens, window.first)
        ours_TV = _predictions(ours, window.tokens, window.first)
        theirs_TV = window.logprobs_TV
        exact, mine, other = (_among(window.known_TV, found) for found in (exact_TV, ours_TV, theirs_TV))
        terms = [_divergence(exact, mine), _divergence(exact, other), _divergence(other, mine)]
        terms += [-float(found.gather(1, targets_T1).double().sum()) for found in (exact_TV, ours_TV, theirs_TV)]
        sums = [total + term for total, term in zip(sums, terms, strict=True)]
        count += len(targets_T1)
    ours_kl, theirs_kl, between, *surprises = (total / count for total in sums)
    exact_ppl, ours_ppl, theirs_ppl = map(math.exp, surprises)
    return Quality(ours_kl, theirs_kl, between, exact_ppl, ours_ppl, theirs_ppl, count)


def measure(reference: Path, ours: Mapping[str, object], theirs: Path, program: Path, num_windows: int) -> Quality:
    """Let both sides predict windows of text. `ours` are settings, `theirs` is the file that llama.cpp opens."""
    dump = theirs.with_suffix(".logits")
    try:
        predict(program, theirs, dump, num_windows, MAX_TOKENS, num_cores())
        exact = ScoredModel({"model": str(reference), "dtype": "float32"})
        return compare(exact, ScoredModel(ours), dump)
    finally:
        dump.unlink(missing_ok=True)


def _predictions(model: ScoredModel, tokens: list[int], first: int) -> Tensor:
    return log_softmax(model.logits(tokens, first)[:-1], dim=-1)


def _among(known_TV: Tensor, logprobs_TV: Tensor) -> Tensor:
    """Return the log-probabilities if only known tokens existed; the others are as good as impossible."""
    return log_softmax(logprobs_TV.masked_fill(~known_TV, -1e4), dim=-1)


def _divergence(expected_TV: Tensor, found_TV: Tensor) -> float:
    return float(kl_div(found_TV, expected_TV, reduction="none", log_target=True).sum(-1).double().sum())


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Answer the one question that the program knows, with the kernels for the `instruction_set`."""
    use_kernels(request["instruction_set"])
    files = (Path(request["reference"]), request["ours"], Path(request["theirs"]), Path(request["program"]))
    return measure(*files, request["num_windows"])._asdict()


if __name__ == "__main__":
    serve(answer)
