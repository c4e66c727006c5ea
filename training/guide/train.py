"""The training loop: AdamW, cosine, an average of the weights, and a second loss that names the topic."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from training.guide.batches import Batch, Batches, Mixture
from training.guide.corpus import Corpus
from training.guide.model import GuideModel, Shape
from training.guide.tokenizer import GuideTokenizer

Report = Callable[[str], None]

# First the topics are learnt, from short examples; then whole texts and conversations, which cost more.
_EARLY = Mixture()
_LATE = Mixture(two_turns=0.25, whole_answers=0.2)


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything that decides the result; the time box is a number of steps, so that it is the same everywhere."""

    seed: int = 0
    threads: int = 2
    vocab_size: int = 3072
    steps: int = 3600
    batch_size: int = 32
    learning_rate: float = 2e-3
    warmup_steps: int = 100
    weight_decay: float = 0.1
    dropout: float = 0.1
    topic_loss: float = 0.3
    average_decay: float = 0.995
    early: Mixture = _EARLY
    late: Mixture = _LATE
    late_share: float = 0.4
    report_every: int = 50


class Average:
    """An exponential moving average of a model's weights; it is what gets shipped."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.weights = {name: weight.clone() for name, weight in model.state_dict().items()}
        self._decay = decay

    @torch.no_grad()
    def update(self, model: nn.Module, step: int) -> None:
        """Move towards the model's weights; early steps count more, or the start would never be forgotten."""
        decay = min(self._decay, step / (step + 10))
        for name, weight in model.state_dict().items():
            self.weights[name].lerp_(weight, 1 - decay)


def train(corpus: Corpus, tokenizer: GuideTokenizer, shape: Shape, recipe: Recipe, report: Report) -> GuideModel:
    """Train a model from random weights and return it with averaged weights, in evaluation mode."""
    torch.set_num_threads(recipe.threads)
    torch.manual_seed(recipe.seed)
    batches = Batches(corpus, tokenizer, recipe.seed)
    model = GuideModel(shape, recipe.dropout)
    topic_head = nn.Linear(shape.hidden, len(corpus.topics))
    optimizer = _make_optimizer(model, topic_head, recipe)
    average = Average(model, recipe.average_decay)
    started, num_tokens = time.monotonic(), 0
    for step in range(1, recipe.steps + 1):
        is_late = step > recipe.steps * (1 - recipe.late_share)
        batch = batches.make(recipe.batch_size, recipe.late if is_late else recipe.early)
        num_tokens += batch.ids_RT.numel()
        for group in optimizer.param_groups:
            group["lr"] = _learning_rate(step, recipe)
        loss = _loss(model, topic_head, batch, recipe.topic_loss)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        average.update(model, step)
        if step % recipe.report_every == 0 or step == recipe.steps:
            seconds = time.monotonic() - started
            left = seconds / step * (recipe.steps - step)
            report(
                f"step {step:5d}/{recipe.steps}  loss {loss.item():.3f}  {num_tokens / seconds:6.0f} tokens/s  "
                f"{seconds:5.0f} s, about {left:.0f} s left"
            )
    model.load_state_dict(average.weights)
    return model.eval()


def _make_optimizer(model: GuideModel, topic_head: nn.Linear, recipe: Recipe) -> torch.optim.AdamW:
    """Weight decay on the matrices only: not on embeddings, norms and the thrown-away topic head."""
    matrices = [w for name, w in model.named_parameters() if w.dim() == 2 and "embed" not in name]
    others = [w for name, w in model.named_parameters() if w.dim() != 2 or "embed" in name]
    groups = [
        {"params": matrices, "weight_decay": recipe.weight_decay},
        {"params": [*others, *topic_head.parameters()], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=recipe.learning_rate, betas=(0.9, 0.98), fused=True)


def _learning_rate(step: int, recipe: Recipe) -> float:
    """Linear warm-up, then a cosine to 3 %."""
    cosine = 0.5 * (1 + math.cos(math.pi * step / recipe.steps))
    return recipe.learning_rate * min(1.0, step / recipe.warmup_steps) * (0.97 * cosine + 0.03)


def _loss(model: GuideModel, topic_head: nn.Linear, batch: Batch, topic_loss: float) -> Tensor:
    """Next-token loss on answers, plus the loss of naming the topic at every token of the question.

    The second one gives each word of a question its own say; it made learning faster and 2-3 points better.
    """
    hidden_RTD, _ = model.hidden(batch.ids_RT, batch.positions_RT, batch.mask_R1TT)
    is_target = batch.learnt_RT[:, 1:]
    loss = functional.cross_entropy(model.logits(hidden_RTD[:, :-1][is_target]), batch.ids_RT[:, 1:][is_target])
    is_question = batch.topics_RT >= 0
    named = functional.cross_entropy(topic_head(hidden_RTD[is_question]), batch.topics_RT[is_question])
    return loss + topic_loss * named
