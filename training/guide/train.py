"""The training: the reciter learns the answers by heart, then the reader learns which answer a question wants."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from training.guide.corpus import Corpus
from training.guide.model import GuideModel, Shape
from training.guide.muon import Muon
from training.guide.reader import Reader, Readings
from training.guide.reciter import Recitals, make_reciter, recital_loss
from training.guide.tokenizer import GuideTokenizer

Report = Callable[[str], None]

REPORT_EVERY = 50
WARM_UP = 100
MAX_ROUNDS = 8  # of repeating
MUON = 2.5  # Muon's learning rate is so many times AdamW's


@dataclass(frozen=True, slots=True)
class Phase:
    """How long one part is trained, on how much at a time, and how fast."""

    steps: int
    size: int  # rows of the reciter, examples of the reader
    learning_rate: float


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything that decides the result; the time box is a number of steps, so that it is the same everywhere."""

    seed: int = 0
    threads: int = 2
    vocab_size: int = 3584
    reciting: Phase = Phase(steps=1300, size=4, learning_rate=4e-3)
    repeating: Phase = Phase(steps=60, size=4, learning_rate=1e-3)
    reading: Phase = Phase(steps=3000, size=384, learning_rate=1.5e-2)
    row: int = 512
    label_smoothing: float = 0.02
    level: float = 6.0  # of the scores of a question, as the logarithm of the sum of their exponentials
    leveling: float = 0.02  # weight of this loss
    unsure_below: float = 3.75  # score of the likeliest topic; a quarter of the held-out questions is below
    rejection_bonus: float = 1.5  # added to the score of `unknown`; chosen on the held-out questions and the exam


def train_reciter(corpus: Corpus, tokenizer: GuideTokenizer, recipe: Recipe, report: Report) -> GuideModel:
    """Train the reciter from random weights and return it in evaluation mode."""
    _prepare(recipe)
    openers = torch.zeros(tokenizer.vocab_size, dtype=torch.bool)
    openers[[tokenizer.unsure, *(tokenizer.opening(topic.answer) for topic in corpus.topics)]] = True
    model = make_reciter(reciter_shape(tokenizer))
    recitals, num_rounds = Recitals(corpus, tokenizer, recipe.seed), 0
    for step in _steps(model, recipe.reciting, "reciting", report):
        step(recital_loss(model, recitals.make(recipe.reciting.size, recipe.row), openers))
    again = Recitals(corpus, tokenizer, recipe.seed + 1)
    while (num_unsure := again.note_unsure(model, openers)) > 0 and num_rounds < MAX_ROUNDS:
        num_rounds += 1
        report(f"{num_unsure} recitals are not sure")
        for step in _steps(model, recipe.repeating, f"repeating, round {num_rounds}", report):
            step(recital_loss(model, again.make(recipe.repeating.size, recipe.row), openers))
    return model.eval()


def train_reader(corpus: Corpus, tokenizer: GuideTokenizer, recipe: Recipe, report: Report) -> Reader:
    """Train the reader, which needs nothing of the reciter, and return it in evaluation mode."""
    _prepare(recipe)
    readings = Readings(corpus, tokenizer, recipe.seed)
    reader = Reader(tokenizer.vocab_size, len(corpus.topics))
    for step in _steps(reader, recipe.reading, "reading", report):
        reading = readings.make(recipe.reading.size)
        scores = reader(reading)
        is_first = reading.first_R < 0
        readings.note_rivals(reading.topic_R[is_first].tolist(), scores.argmax(-1)[is_first].tolist())
        # Scores are held at one level, so that a threshold means the same likelihood for every question.
        level = (scores.logsumexp(-1) - recipe.level).square().mean()
        loss = functional.cross_entropy(scores, reading.topic_R, label_smoothing=recipe.label_smoothing)
        step(loss + recipe.leveling * level)
    return reader.eval()


def reciter_shape(tokenizer: GuideTokenizer) -> Shape:
    """The sizes of the reciter."""
    return Shape(tokenizer.vocab_size, hidden=192, layers=3, heads=4, kv_heads=2, ffn=528)


def _prepare(recipe: Recipe) -> None:
    """Set what makes a training the same on one machine, and fast."""
    torch.set_num_threads(recipe.threads)
    torch.set_flush_denormal(True)
    torch.manual_seed(recipe.seed)


def _steps(model: nn.Module, phase: Phase, name: str, report: Report) -> Iterator[Callable[[torch.Tensor], None]]:
    """Yield for each step what takes the loss; a warm-up, then a cosine to 2 %."""
    optimizers = make_optimizers(model, phase.learning_rate)
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    rates = [group["lr"] for group in groups]
    started, losses = time.monotonic(), 0.0

    def step(loss: torch.Tensor) -> None:
        nonlocal losses
        model.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
        losses += loss.item()

    for number in range(1, phase.steps + 1):
        cosine = 0.5 * (1 + math.cos(math.pi * number / phase.steps))
        for group, rate in zip(groups, rates, strict=True):
            group["lr"] = rate * min(1.0, number / WARM_UP) * (0.98 * cosine + 0.02)
        yield step
        if number % REPORT_EVERY == 0 or number == phase.steps:
            seconds = time.monotonic() - started
            left = seconds / number * (phase.steps - number)
            mean = losses / (number % REPORT_EVERY or REPORT_EVERY)
            report(f"{name}: step {number}/{phase.steps}  loss {mean:.3f}  {seconds:.0f} s, about {left:.0f} s left")
            losses = 0.0


def make_optimizers(model: nn.Module, learning_rate: float) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of a Llama's layers, AdamW for all else; neither decays weights, which are to remember."""
    weights = dict(model.named_parameters())
    matrices = [weight for name, weight in weights.items() if name.startswith("model.layers.") and weight.dim() == 2]
    ids = set(map(id, matrices))
    others = [weight for weight in weights.values() if id(weight) not in ids]
    adam = torch.optim.AdamW(others, lr=learning_rate, betas=(0.9, 0.98), weight_decay=0, fused=True)
    return [adam, Muon(matrices, lr=MUON * learning_rate)] if matrices else [adam]
