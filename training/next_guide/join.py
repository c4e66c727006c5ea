"""Puts the reader and the reciter into one Llama: each has dimensions, heads and neurons that the other never touches.

| | reciter | reader |
|---|---|---|
| hidden dimensions | the first | the others |
| heads | the first, behind layer 0 | the last group, in the first two layers |
| feed-forward | all | none |

In layer 0 the assistant's marker averages the words of the question, which becomes its topic; every other token notes
what kind of token it is, and whether it stands in the question, in the first answer or in the second. In layer 1 the
two tokens behind which an answer begins, too, look at that marker, and at the token that opened a first answer; the
tokens of a first answer note that a second one comes. The scores of the tokens that open an answer are the sum of both
parts: the reciter's part says whether an answer begins here, the reader's part which one.

Behind layer 0 the reciter sees nothing that stands before an answer, so it recites what it has learnt, whatever was
asked. Two coordinates of its queries and keys do that: they are zero within an answer, and make the score of a token
that stands in an earlier part so low that its weight is nothing.

The norms divide by the length of the whole hidden state. The reader's part is small beside the reciter's everywhere:
`QUIET` times as long as it is meant in embeddings, and behind them as `LOUD` says. Nothing is added to it, so it loses
no precision; of types of 16 bits only bfloat16 has numbers so far apart. In layer 0 the length is known for every
token, so the reader reads there exactly what it was trained with.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from training.guide.corpus import UNKNOWN, Corpus
from training.next_guide.batches import Batch
from training.next_guide.model import GuideModel, Shape
from training.next_guide.reader import GAIN, HEADS, TOPIC, WORDS, Reader
from training.next_guide.reciter import RESERVED
from training.next_guide.tokenizer import GuideTokenizer

QUIET = 1 / 64
FAINT = 1 / 8192  # of choices: behind its own opener an answer still has its topic, and shorter hidden states
LOUD = 1 / 30  # of the length that the marker's hidden state has within layer 0
BEGINS = 15.0  # how far above its own score every choice is where an answer begins
NEVER = 60.0  # how far the score of a choice falls that cannot be a second one
GOES_ON, ENDS = 1.5, -4.0  # what is added behind a first answer to the scores of a second one and of the end
SPECIAL = 256.0  # so much smaller are these numbers in embeddings, and larger in the last norm
UNREAD = -30.0  # the weight of tokens that are no words of a question
LOOKING, RESTS = 30.0, 4.0

# Which coordinates of a head are used: rotary pairs so slow that they hardly turn within the longest conversation.
AT_WEIGHTS = (31, 30)  # one for each average
AT_MARKER, AT_FIRST = 31, 30
AT_USER, AT_COPIER, AT_OPENER = 29, 28, 27
AT_PART = 26
NUM_NOTES = 6
BLIND = 32.0  # of these two coordinates

# The reader's dimensions, counted from its first one: those of embeddings, and from `READING` on those of layer 0.
WEIGHTS = WORDS
USER, CHOOSER, COPIER, OPENER, FIRST_COPIER, OTHER = range(WORDS + HEADS, WORDS + HEADS + 6)
READING, RESTING = OTHER + 1, OTHER + 2
TOPICS = RESTING + 1
BIAS, COPYING, OPENING = range(TOPICS + TOPIC, TOPICS + TOPIC + 3)
UNSURE = OPENING + 1
QUESTION, FIRST, SECOND = range(UNSURE + 1, UNSURE + 4)  # the part that a token stands in
SIZE = 144  # with the reciter's a multiple of the number of heads, which transformers wants


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Below which score no topic is sure, and how much is added to the score of the rejection."""

    unsure: float
    unknown: float


def join(
    reciter: GuideModel,
    reader: Reader,
    tokenizer: GuideTokenizer,
    corpus: Corpus,
    thresholds: Thresholds,
    sample: Batch,
) -> GuideModel:
    """Return one model that answers as both together; `sample` shows how long the reciter's hidden states are."""
    small = reciter.shape
    hidden, kv_heads = small.hidden + SIZE, small.kv_heads + 1
    shape = Shape(
        vocab_size=small.vocab_size,
        hidden=hidden,
        layers=small.layers,
        heads=kv_heads * HEADS,
        kv_heads=kv_heads,
        head_dim=small.head_dim,
        ffn=small.ffn,
        norm_eps=small.norm_eps * small.hidden / hidden,
    )
    assert small.heads == small.kv_heads * HEADS
    assert small.head_dim >= max(WORDS + NUM_NOTES, TOPIC + 2)
    assert SECOND < SIZE
    whole = GuideModel(shape)
    with torch.no_grad():
        for weight in whole.parameters():
            weight.zero_()
        _place_reciter(whole, reciter)
        joint = _Joint(whole, reciter, tokenizer, [tokenizer.opening(text) for text in corpus.answers.values()], sample)
        joint.place_words(reader)
        joint.place_topics(reader, tokenizer.opening(corpus.answers[UNKNOWN]), thresholds)
        joint.place_average(reader)
        joint.place_copy(reader)
        joint.place_parts()
    return whole.eval()


def _place_reciter(whole: GuideModel, reciter: GuideModel) -> None:
    width = reciter.shape.hidden
    shrink = math.sqrt(width / whole.shape.hidden)  # the norm's mean is over more dimensions
    whole.model.embed_tokens.weight[:, :width] = reciter.model.embed_tokens.weight
    whole.model.norm.weight[:width] = reciter.model.norm.weight * shrink
    for into, of in zip(whole.model.layers, reciter.model.layers, strict=True):
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


class _Joint:
    """Places the reader beside the reciter that is there already."""

    def __init__(
        self,
        whole: GuideModel,
        reciter: GuideModel,
        tokenizer: GuideTokenizer,
        openers: Sequence[int],
        sample: Batch,
    ) -> None:
        self._whole, self._markers, self._openers = whole, tokenizer.markers, list(openers)
        self._copiers = [tokenizer.unsure, tokenizer.or_else]
        self._first, self._head = reciter.shape.hidden, whole.shape.head_dim
        # What the norms divide by: in layer 0 for each token, elsewhere the mean where it matters.
        per_token, eps = reciter.model.embed_tokens.weight.square().sum(-1), whole.shape.norm_eps
        self._lengths_V = (per_token / whole.shape.hidden + eps).sqrt()
        shrink = math.sqrt(reciter.shape.hidden / whole.shape.hidden)
        _, within, second, *_, last = reciter.scales(sample.ids_RT, sample.positions_RT, sample.mask_R1TT)
        is_marker = sample.ids_RT == self._markers.assistant
        is_opener = torch.isin(sample.ids_RT, torch.tensor(self._openers))
        is_word = sample.learnt_RT & ~is_opener & ~torch.isin(sample.ids_RT, torch.tensor(self._copiers))
        self._at_marker, self._at_opener, self._at_unsure, self._at_word = (
            float(shrink / second[at].mean())
            for at in (is_marker, is_opener, sample.ids_RT == tokenizer.unsure, is_word)
        )
        self._at_end, self._at_word_end = (float(shrink / last[at].mean()) for at in (is_marker, is_word))
        self._loud = LOUD * float(shrink / within[is_marker].mean())

    def _dims(self, start: int, count: int) -> slice:
        return slice(self._first + start, self._first + start + count)

    def place_words(self, reader: Reader) -> None:
        """Words, weights and kinds of tokens, as long as the norm of layer 0 will divide them by."""
        table = torch.zeros(len(self._lengths_V), READING)
        table[:, :WORDS] = reader.words.weight
        table[:, WEIGHTS:USER] = reader.weights.weight
        kinds = {USER: [self._markers.user], COPIER: self._copiers, OPENER: self._openers}
        unread = [*self._markers, *self._copiers, *self._openers]
        table[unread, :WORDS], table[unread, WEIGHTS:USER] = 0.0, UNREAD
        table[:, OTHER] = 1.0
        for kind, tokens in kinds.items():
            table[tokens, kind], table[tokens, OTHER] = 1.0, 0.0
        table[self._markers.assistant, CHOOSER] = 1.0
        table[self._copiers[0], FIRST_COPIER] = 1.0
        embeddings = self._whole.model.embed_tokens.weight
        embeddings[:, self._dims(0, READING)] = QUIET * self._lengths_V[:, None] * table
        embeddings[self._markers.assistant, self._first + FIRST] = self._loud

    def place_topics(self, reader: Reader, unknown: int, thresholds: Thresholds) -> None:
        """The topics of the choices, and what the scores of special choices are."""
        table, norm = self._whole.model.embed_tokens.weight, self._whole.model.norm.weight
        (unsure, or_else), bias = self._copiers, torch.full((len(table),), BEGINS)
        bias[unsure] += thresholds.unsure
        bias[unknown] += thresholds.unknown
        choices = [*self._openers, unsure]
        table[self._openers, self._dims(TOPICS, TOPIC)] = FAINT * reader.topics.weight
        table[choices, self._first + BIAS] = FAINT / SPECIAL * bias[choices]
        falls = {unsure: NEVER, unknown: NEVER, or_else: -GOES_ON, self._markers.end: -ENDS}
        table[list(falls), self._first + COPYING] = FAINT / SPECIAL * torch.tensor(list(falls.values()))
        gain = self._at_end / (self._loud * FAINT)
        norm[self._dims(TOPICS, TOPIC)] = gain
        norm[self._first + BIAS], norm[self._first + COPYING] = SPECIAL * gain, -SPECIAL * gain

    def place_average(self, reader: Reader) -> None:
        """Layer 0: the assistant's marker averages the words, the others look at the user's marker or at themselves."""
        layer, query, key, value = self._look(0)
        layer.input_layernorm.weight[self._dims(0, READING)] = 1 / QUIET
        for head, at in enumerate(AT_WEIGHTS):
            query[head, at, CHOOSER] = math.sqrt(self._head)  # what attention divides by
            key[at, WEIGHTS + head] = 1.0
            said = reader.sum.weight[:, head * WORDS : (head + 1) * WORDS]
            self._output(layer, head)[TOPICS : TOPICS + TOPIC, :WORDS] = self._loud * GAIN * said
        query[0, AT_USER, [OTHER, USER]], query[0, AT_USER, CHOOSER] = LOOKING, -LOOKING
        query[0, AT_COPIER, COPIER] = query[0, AT_OPENER, OPENER] = LOOKING
        # The second head of all tokens but the marker looks at what their part begins with.
        query[1, AT_PART, [OTHER, COPIER, OPENER]], query[1, AT_PART, CHOOSER] = LOOKING, -LOOKING
        key[AT_PART, [USER, CHOOSER, COPIER]] = LOOKING * torch.tensor([1.0, 2.0, 3.0])
        key[AT_PART, FIRST_COPIER] = -3 * LOOKING
        for at, kind in ((AT_USER, USER), (AT_COPIER, COPIER), (AT_OPENER, OPENER)):
            key[at, kind] = LOOKING
        key[AT_COPIER, FIRST_COPIER] = -LOOKING / 2  # the other one looks at itself
        value[:WORDS, :WORDS] = torch.eye(WORDS)
        written = self._output(layer, 0)
        notes = {OTHER: (READING, BIAS), USER: (RESTING,), COPIER: (COPYING,), OPENER: (OPENING,)}
        for at, (kind, dims) in enumerate(notes.items(), start=WORDS):
            value[at, kind] = 1.0
            written[list(dims), at] = self._loud
        written[TOPICS : TOPICS + TOPIC, WORDS] = self._loud * reader.start
        begun, of_user, of_copier, of_unsure = self._output(layer, 1), WORDS + 1, WORDS + 2, WORDS + len(notes)
        value[of_unsure, FIRST_COPIER] = value[of_unsure + 1, CHOOSER] = 1.0
        written[UNSURE, of_unsure] = self._loud
        begun[QUESTION, of_user] = begun[FIRST, of_unsure + 1] = begun[SECOND, of_copier] = self._loud
        begun[SECOND, of_unsure] = -self._loud

    def place_copy(self, reader: Reader) -> None:
        """Layer 1: a further choice gets a copy of the marker's topic, and what `again` makes of the first answer's."""
        layer, query, key, value = self._look(1)
        layer.input_layernorm.weight[self._dims(READING, SIZE - READING)] = self._at_marker / self._loud
        opened, rested = self._at_opener / self._at_marker, self._at_word / self._at_marker
        query[0, AT_MARKER, COPYING] = key[AT_MARKER, READING] = LOOKING
        query[1, AT_FIRST, COPYING], key[AT_FIRST, OPENING] = LOOKING, LOOKING * opened
        # Tokens of answers look at the last copier before them, and note whether it is the first one.
        query[:, AT_COPIER, [RESTING, OPENING]], key[AT_COPIER, COPYING] = LOOKING, 2 * LOOKING
        key[AT_COPIER, UNSURE] = -LOOKING
        # Whatever finds nothing looks at ordinary tokens, which have no topic.
        query[:, AT_USER, [READING, RESTING, OPENING, COPYING]], key[AT_USER, RESTING] = LOOKING, RESTS * rested
        value[: TOPIC + 1, TOPICS : BIAS + 1] = torch.eye(TOPIC + 1)
        self._output(layer, 0)[TOPICS : BIAS + 1, : TOPIC + 1] = self._loud * torch.eye(TOPIC + 1)
        value[TOPIC + 1, UNSURE] = self._at_unsure / self._at_marker
        self._output(layer, 0)[COPYING, TOPIC + 1] = self._loud * self._at_word_end / self._at_end
        said = opened * self._loud / FAINT * reader.again.weight
        self._output(layer, 1)[TOPICS : TOPICS + TOPIC, :TOPIC] = self._loud * said

    def place_parts(self) -> None:
        """Behind layer 0: no token of an answer looks at an earlier part."""
        of_question, of_first = RESERVED
        for layer in self._whole.model.layers[1:]:
            layer.input_layernorm.weight[self._dims(QUESTION, 3)] = self._at_marker / self._loud
            query, key = (
                projection.weight.unflatten(0, (-1, self._head))[:-count, :, self._first :]
                for projection, count in ((layer.self_attn.q_proj, HEADS), (layer.self_attn.k_proj, 1))
            )
            query[:, of_question, [FIRST, SECOND]] = query[:, of_first, SECOND] = -BLIND
            key[:, of_question, QUESTION] = key[:, of_first, FIRST] = BLIND

    def _look(self, number: int) -> tuple[torch.nn.Module, Tensor, Tensor, Tensor]:
        """Return a layer, and of its attention what the last heads read: queries (heads first), keys and values."""
        layer, size = self._whole.model.layers[number], self._head
        query = layer.self_attn.q_proj.weight[-HEADS * size :].unflatten(0, (HEADS, size))
        key, value = layer.self_attn.k_proj.weight[-size:], layer.self_attn.v_proj.weight[-size:]
        return layer, query[..., self._first :], key[:, self._first :], value[:, self._first :]

    def _output(self, layer: torch.nn.Module, head: int) -> Tensor:
        """Return what a head of the last group writes into the reader's dimensions."""
        weight: Tensor = layer.self_attn.o_proj.weight[self._first :]
        return weight[:, (head - HEADS) * self._head :][:, : self._head]
