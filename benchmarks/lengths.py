"""How long prompts and answers are: lists sampled from the length models of `quire bench serve`."""

from itertools import islice

from app.loadgen.lengths import MODELS, LengthModel, Lengths, sampled

SHAREGPT, ALPACA = MODELS["sharegpt"], MODELS["alpaca"]


def draw(model: LengthModel, count: int, seed: int = 0) -> list[Lengths]:
    """Draw the lengths of `count` requests, each from 1 to 1,024 tokens."""
    return list(islice(sampled(model, seed), count))
