"""The report of a training: the table of the held-out questions, and which of them went wrong."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from training.guide.corpus import UNKNOWN, Corpus
from training.guide.evaluate import Outcome, Score
from training.guide.model import GuideModel
from training.guide.train import Recipe


def table(scores: Sequence[Score]) -> str:
    """The scores as a Markdown table."""
    lines = ["| held-out questions | number | right | two answers | byte-clean |", "|---|---:|---:|---:|---:|"]
    lines += [
        f"| {score.name} | {len(score.outcomes)} | {score.right:.1%} | {score.doubled:.1%} | {score.clean:.1%} |"
        for score in scores
    ]
    return "\n".join(lines)


def write_results(
    file: Path, corpus: Corpus, recipe: Recipe, model: GuideModel, scores: Sequence[Score], seconds: float
) -> None:
    """Write the report."""
    num_wordings = sum(len(topic.wordings) for topic in corpus.topics if topic.name != UNKNOWN)
    num_parameters = sum(weight.numel() for weight in model.parameters())
    shape = model.shape
    parts = [
        "# Results of the last training",
        "Made by `make guide`; do not edit. One wording of every topic, chosen by its hash, is left out of the "
        "tokenizer and of the training. Right: the text, or one of two that the model gives where it is not sure, is "
        "exactly the topic's answer; byte-clean: it consists of topics' answers.",
        table(scores),
        f"{len(corpus.topics) - 1} topics and the rejection, {num_wordings} trained wordings, "
        f"{num_parameters / 1e6:.2f} M parameters (hidden {shape.hidden}, {shape.layers} layers, "
        f"{shape.heads}/{shape.kv_heads} heads of {shape.head_dim}, ffn {shape.ffn}, vocabulary {shape.vocab_size}), "
        f"{recipe.reciting.steps} steps of {recipe.reciting.size} rows of {recipe.row} tokens to recite, "
        f"{recipe.reading.steps} of {recipe.reading.size} questions to read, seed {recipe.seed}, "
        f"{recipe.threads} threads, {seconds / 60:.0f} minutes.",
        "## What went wrong",
        _misses(scores),
    ]
    file.write_text("\n\n".join(parts) + "\n", "utf-8")


def _misses(scores: Sequence[Score]) -> str:
    lines = [
        f"- {score.name}: “{outcome.asked.question}” ({outcome.asked.topic}) got {_named(outcome)}"
        for score in scores
        for outcome in score.outcomes
        if not outcome.is_right
    ]
    return "\n".join(lines) or "Nothing."


def _named(outcome: Outcome) -> str:
    return " and ".join(outcome.got) or "an unclean text"
