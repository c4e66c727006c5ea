"""Puts the reader and the reciter into one Llama: each has dimensions, heads and neurons that the other never touches.

| | reciter | reader |
|---|---|---|
| hidden dimensions | the first | then words, then topic, then flag and bias |
| heads | the first, in all layers | the last group, in the first two layers |
| feed-forward | all | none |

They meet in two places. The norms divide by the length of the whole hidden state; the reader's part of it is kept
small (`SMALL`), so that it is the reciter's length that counts, and the reader was trained with it. And the scores of
the tokens that open an answer are the sum of both parts; the reciter's part says whether an answer begins here, the
reader's part which one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from training.guide.corpus import UNKNOWN, Corpus
from training.next_guide.model import GuideModel, Shape
from training.next_guide.reader import GAIN, HEAD_DIM, HEADS, ROLE, SIGNS, TOPIC, WORDS, Look, Reader
from training.next_guide.tokenizer import GuideTokenizer

SMALL = 0.005
SHARPER = 4.0  # sums of words are so much larger, and topics smaller: a topic must not score high behind its own opener
NEVER = 80.0  # how far the score of a choice falls that cannot be a second one


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Below which score no topic is sure, and how much is added to the score of the rejection."""

    unsure: float
    unknown: float


def join(
    reciter: GuideModel, reader: Reader, tokenizer: GuideTokenizer, corpus: Corpus, thresholds: Thresholds
) -> GuideModel:
    """Return one model that answers as both together."""
    small = reciter.shape
    hidden = small.hidden + WORDS + TOPIC + 2
    kv_heads = small.kv_heads + 1
    shape = Shape(
        small.vocab_size,
        hidden,
        small.layers,
        kv_heads * HEADS,
        kv_heads,
        small.head_dim,
        small.ffn,
        small.norm_eps * small.hidden / hidden,
    )
    assert small.head_dim == HEAD_DIM
    assert small.heads == small.kv_heads * HEADS
    whole = GuideModel(shape)
    with torch.no_grad():
        for weight in whole.parameters():
            weight.zero_()
        _place_embeddings(whole, reciter, reader, tokenizer, corpus, thresholds)
        shrink = math.sqrt(small.hidden / hidden)  # the norm's mean is over more dimensions
        words = slice(small.hidden, small.hidden + WORDS)
        topic = slice(words.stop, words.stop + TOPIC)
        for number, (into, of) in enumerate(zip(whole.model.layers, reciter.model.layers, strict=True)):
            _place_reciter(into, of, small.hidden, shrink)
            if number < 2:
                look, result = ((reader.role, slice(words.stop - ROLE, words.stop)), (reader.sum, topic))[number]
                into.input_layernorm.weight[words] = shrink / SMALL / reader.scale[number]
                _place_look(into.self_attn, look, words, result, SHARPER * GAIN if number else 1.0)
                if number == 1:  # what signs say is in the choosing tokens: see `_said_by_signs`
                    signs = torch.tensor([*range(SIGNS), *range(WORDS - ROLE, WORDS)])
                    into.self_attn.v_proj.weight[-HEAD_DIM:, small.hidden + signs] = 0.0
        whole.model.norm.weight[: small.hidden] = reciter.model.norm.weight * shrink
        # Topics are small twice: in the sum, and in the vectors that it is compared with.
        whole.model.norm.weight[topic.start :] = shrink / SMALL**2 / reader.scale[2]
        whole.model.norm.weight[topic.stop] *= -1  # the flag
    return whole.eval()


def _place_embeddings(
    whole: GuideModel,
    reciter: GuideModel,
    reader: Reader,
    tokenizer: GuideTokenizer,
    corpus: Corpus,
    thresholds: Thresholds,
) -> None:
    """Tokens of both parts; flag and bias belong to the few tokens that choose and to the two special choices.

    The score of a choice gets bias times bias, minus flag times flag, of the token that chooses and of the choice.
    """
    table, width = whole.model.embed_tokens.weight, reciter.shape.hidden
    table[:, :width] = reciter.model.embed_tokens.weight
    table[:, width : width + WORDS] = SMALL * reader.words.weight[reader.alias]
    # The second look rests on the user's marker where no answer begins: it must say nothing there.
    table[tokenizer.markers.user, width + SIGNS : width + WORDS - ROLE] = 0.0
    choosers = [tokenizer.markers.assistant, tokenizer.unsure, tokenizer.or_else]
    table[choosers, width + WORDS : width + WORDS + TOPIC] = SMALL * SHARPER * GAIN * _said_by_signs(reader, tokenizer)
    openers = [tokenizer.opening(answer) for answer in corpus.answers.values()]
    table[openers, width + WORDS : width + WORDS + TOPIC] = SMALL / SHARPER * reader.topics.weight
    flag, bias = width + WORDS + TOPIC, width + WORDS + TOPIC + 1
    unknown = tokenizer.opening(corpus.answers[UNKNOWN])
    table[[tokenizer.unsure, tokenizer.or_else, unknown], flag] = SMALL * math.sqrt(NEVER)
    table[tokenizer.markers.assistant, bias] = SMALL
    table[tokenizer.unsure, bias] = SMALL * thresholds.unsure
    table[unknown, bias] = SMALL * thresholds.unknown


def _said_by_signs(reader: Reader, tokenizer: GuideTokenizer) -> Tensor:
    """Return what the second look reads in every token of a question alike; the tokens that choose get it at once."""
    user = reader.words.weight[tokenizer.markers.user]
    role = reader.role.o_proj(reader.role.v_proj(user).repeat(HEADS))
    same = torch.zeros(WORDS)
    same[0], same[-ROLE:] = 1.0, role
    said: Tensor = reader.sum.o_proj(reader.sum.v_proj(same).repeat(HEADS))
    return said


def _place_reciter(into: torch.nn.Module, of: torch.nn.Module, width: int, shrink: float) -> None:
    for name in ("q_proj", "k_proj", "v_proj"):
        weight: Tensor = getattr(of.self_attn, name).weight
        getattr(into.self_attn, name).weight[: len(weight), :width] = weight
    weight = of.self_attn.o_proj.weight
    into.self_attn.o_proj.weight[:width, : weight.shape[1]] = weight
    into.mlp.gate_proj.weight[:, :width] = of.mlp.gate_proj.weight
    into.mlp.up_proj.weight[:, :width] = of.mlp.up_proj.weight
    into.mlp.down_proj.weight[:width] = of.mlp.down_proj.weight
    for name in ("input_layernorm", "post_attention_layernorm"):
        getattr(into, name).weight[:width] = getattr(of, name).weight * shrink


def _place_look(into: torch.nn.Module, look: Look, words: slice, result: slice, gain: float) -> None:
    """The look's heads become the last ones; its keys and values the last pair."""
    into.q_proj.weight[-HEADS * HEAD_DIM :, words] = look.q_proj.weight
    into.k_proj.weight[-HEAD_DIM:, words] = look.k_proj.weight
    into.v_proj.weight[-HEAD_DIM:, words] = look.v_proj.weight
    into.o_proj.weight[result, -HEADS * HEAD_DIM :] = SMALL * gain * look.o_proj.weight
