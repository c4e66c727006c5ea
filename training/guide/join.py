"""Puts the reader and the reciter into one Llama: each has dimensions, heads and neurons that the other never touches.

| | reciter | reader |
|---|---|---|
| hidden dimensions | the first | the others |
| heads | the first, behind layer 0 | the last group |
| feed-forward | all | none |

- Layer 0: the assistant's marker averages the words of the question, which becomes its topic; every other token notes
  whether it stands in the question, in the first answer or in the second.
- Layer 1: the two other tokens behind which a choice stands look at that marker, and at what opened a first answer.
- Layer 2: the topics of these three become loud, and notes let scores fall that cannot come now, or in a first answer.

The scores of the tokens that open an answer are the sum of both parts: the reciter's part says whether an answer begins
here, the reader's part which one.

Behind layer 0 the reciter sees nothing that stands before an answer, so it recites what it has learnt, whatever was
asked. Two coordinates of its queries and keys do that: they are zero within an answer, and make the score of a token
that stands in an earlier part so low that its weight is nothing.

The norms divide by the length of the whole hidden state, which should be the reciter's alone. So the reader's numbers
are small beside it: here they are of the order of 1, and the marker's hidden state is made `LENGTH` times as long for
the time being, which only norms could see. In layer 0 the length is known for every token, so the reader reads there
exactly what it was trained with; behind it, kinds of tokens have lengths that hardly differ.

All this holds in every type of number:

- Nothing is too large or too small for 16 bits, since topics become loud only where hidden states have become long.
- Quantized weights have one step for `BLOCK` columns. Words, topics and everything else have blocks of their own, and
  notes in a row have one sign: so four bits hold zero and the largest exactly. Beside learnt numbers a zero is none any
  longer; so whoever has nothing to look at looks at the end of the question, which notes nothing.
- Queries are large and not keys, since a cache may keep keys in eight bits.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from training.guide.batches import Batch
from training.guide.corpus import UNKNOWN, Corpus
from training.guide.model import GuideModel, Shape
from training.guide.reader import GAIN, HEADS, TOPIC, WIDTHS, WORDS, Reader
from training.guide.reciter import RESERVED
from training.guide.tokenizer import GuideTokenizer

LENGTH = 32  # of the marker's hidden state within layer 0, beside notes of 1
QUIET = 1 / 64  # of words and of kinds of tokens: they are so long in embeddings beside the whole hidden state
CHOICE = 16.0  # so many times larger is what the scores of choices are made of in embeddings
LOUD = 1 / 64  # topics in the last layer, of the length that the marker's hidden state has there
DEEP, LIFT = 64.0, 16.0  # so much louder is that scores fall, and what all choices have
FAR = 32.0  # what norms multiply by behind layer 0 would be too large; the matrices do a part of it
BEGINS = 1.0  # how far above its own score every choice is where an answer begins
NEVER = 40.0  # how far the score of a choice falls that cannot be a second one
GOES_ON, ENDS = 1.5, -4.0  # what is added behind a first answer to the scores of a second one and of the end
STOPS = 2.0  # what is added behind every answer to the score of the end: the reciter does not see which one it is
IS_WORD = 15.0  # added to the weights of words: nothing else is read
LOOKING, BLIND = 900.0, 4000.0  # queries of what is looked for and of what must not be looked at, beside keys of 1
RESTS = 1 / 4  # the key of what is looked at where nothing else is found
BLOCK = 32

# Which coordinates of a head are used: rotary pairs so slow that they hardly turn within the longest conversation.
AT_WEIGHTS = (31, 30)  # one for each average
AT_MARKER, AT_FIRST = 31, 30
AT_END, AT_COPIER, AT_PART = 29, 28, 27
AT_ITSELF = (31, 30, 27)

# The reader's dimensions, counted from its first one: words, topics, and what else there is, in blocks of their own.
TOPICS = 2 * BLOCK
BIAS, COPYING = TOPICS + TOPIC, TOPICS + TOPIC + 1
WEIGHTS = 2 * TOPICS
KINDS = slice(WEIGHTS + HEADS, WEIGHTS + HEADS + 7)
WORD, USER, CHOOSER, UNSURE, OR_ELSE, OPENER, END = range(KINDS.start, KINDS.stop)
QUESTION, FIRST, SECOND = range(KINDS.stop, KINDS.stop + 3)  # the part that a token stands in
SIZE = 144  # with the reciter's a multiple of the number of heads, which transformers wants
BEGINNINGS = [CHOOSER, UNSURE, OR_ELSE]  # behind these a choice stands
NOTED = [WORD, USER, CHOOSER, OR_ELSE]  # kinds that are noted by who looks at them


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
    hidden, kv_heads = reciter.shape.hidden + SIZE, reciter.shape.kv_heads + 1
    shrink = math.sqrt(reciter.shape.hidden / hidden)  # the norm's mean is over more dimensions
    is_marker = sample.ids_RT == tokenizer.markers.assistant
    _, within, *_ = reciter.scales(sample.ids_RT, sample.positions_RT, sample.mask_R1TT)
    factor = 2.0 ** round(math.log2(LENGTH * float(within[is_marker].mean()) / shrink))  # so no weight is rounded
    reciter = _lengthened(_stopping(reciter, tokenizer, sample), factor)
    small = reciter.shape
    shape = Shape(
        vocab_size=small.vocab_size,
        hidden=hidden,
        layers=small.layers,
        heads=kv_heads * HEADS,
        kv_heads=kv_heads,
        head_dim=small.head_dim,
        ffn=small.ffn,
        norm_eps=small.norm_eps * shrink**2,
    )
    assert small.heads == small.kv_heads * HEADS
    assert small.head_dim >= max(WORDS + len(NOTED), TOPIC + 3)
    assert small.layers > 2
    assert WORDS <= TOPICS
    assert COPYING < WEIGHTS
    assert SECOND < SIZE
    assert small.hidden % BLOCK == 0
    whole = GuideModel(shape)
    with torch.no_grad():
        for weight in whole.parameters():
            weight.zero_()
        _place_reciter(whole, reciter, shrink)
        joint = _Joint(whole, reciter, tokenizer, [tokenizer.opening(text) for text in corpus.answers.values()], sample)
        joint.place_words(reader)
        joint.place_topics(reader, tokenizer.opening(corpus.answers[UNKNOWN]), thresholds)
        joint.place_average(reader)
        joint.place_copy(reader)
        joint.place_choice()
        joint.place_parts()
    return _lengthened(whole, 1 / factor)


@torch.no_grad()
def _stopping(reciter: GuideModel, tokenizer: GuideTokenizer, sample: Batch) -> GuideModel:
    """Return the same model with a higher score of the end where an answer is over; no answer looks at that token."""
    hidden_RTD, _ = reciter.hidden(sample.ids_RT, sample.positions_RT, sample.mask_R1TT)
    ends = torch.tensor([tokenizer.markers.end, tokenizer.or_else])
    is_over = torch.isin(sample.ids_RT[:, 1:], ends) & sample.learnt_RT[:, 1:]
    over_D = hidden_RTD[:, :-1][is_over].mean(0)
    stopping = GuideModel(reciter.shape)
    stopping.load_state_dict(reciter.state_dict())
    stopping.model.embed_tokens.weight[tokenizer.markers.end] += STOPS * over_D / over_D.square().sum()
    return stopping.eval()


@torch.no_grad()
def _lengthened(model: GuideModel, factor: float) -> GuideModel:
    """Return the same model with hidden states `factor` times as long, which its norms hide."""
    long = GuideModel(dataclasses.replace(model.shape, norm_eps=model.shape.norm_eps * factor**2))
    long.load_state_dict(model.state_dict())
    long.model.embed_tokens.weight.mul_(factor)
    for layer in long.model.layers:
        layer.self_attn.o_proj.weight.mul_(factor)
        layer.mlp.down_proj.weight.mul_(factor)
    long.model.norm.weight.div_(factor)
    return long.eval()


def _place_reciter(whole: GuideModel, reciter: GuideModel, shrink: float) -> None:
    width = reciter.shape.hidden
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
        self._unsure, self._or_else = tokenizer.unsure, tokenizer.or_else
        self._first, self._head = reciter.shape.hidden, whole.shape.head_dim
        # What the norms divide by: in layer 0 for each token, elsewhere the mean where it matters.
        per_token, eps = reciter.model.embed_tokens.weight.square().sum(-1), whole.shape.norm_eps
        self._lengths_V = (per_token / whole.shape.hidden + eps).sqrt()
        shrink = math.sqrt(reciter.shape.hidden / whole.shape.hidden)
        scales = reciter.scales(sample.ids_RT, sample.positions_RT, sample.mask_R1TT)
        tokens = {
            CHOOSER: [self._markers.assistant],
            UNSURE: [self._unsure],
            OR_ELSE: [self._or_else],
            OPENER: self._openers,
            END: [self._markers.end],
        }
        is_kind = {kind: torch.isin(sample.ids_RT, torch.tensor(ids)) for kind, ids in tokens.items()}
        is_kind[WORD] = sample.learnt_RT & ~torch.stack(list(is_kind.values())).any(0)
        self._lengths = {  # of each kind of token, before each layer and the last norm
            kind: [float(shrink / scale[at].mean()) for scale in scales[::2]] for kind, at in is_kind.items()
        }
        self._loud = LOUD * self._lengths[CHOOSER][-1]

    def _dims(self, start: int, count: int) -> slice:
        return slice(self._first + start, self._first + start + count)

    def place_words(self, reader: Reader) -> None:
        """Words, weights and kinds of tokens, as long as the norm of layer 0 will divide them by."""
        table = torch.zeros(len(self._lengths_V), SIZE)
        table[:, :WORDS] = reader.words.weight
        table[:, WEIGHTS:WORD] = reader.weights.weight
        kinds = {
            USER: [self._markers.user],
            CHOOSER: [self._markers.assistant],
            UNSURE: [self._unsure],
            OR_ELSE: [self._or_else],
            OPENER: self._openers,
            END: [self._markers.pad, self._markers.end],
        }
        table[:, WORD] = 1.0
        for kind, tokens in kinds.items():
            table[tokens] = 0.0
            table[tokens, kind] = 1.0
        embeddings = self._whole.model.embed_tokens.weight
        embeddings[:, self._first :] = QUIET * self._lengths_V[:, None] * table
        embeddings[self._markers.assistant, self._first + FIRST] = 1.0
        embeddings[self._markers.end, self._first + QUESTION] = 1.0

    def place_topics(self, reader: Reader, unknown: int, thresholds: Thresholds) -> None:
        """The topics of the choices, and what the scores of special choices are."""
        table, norm = self._whole.model.embed_tokens.weight, self._whole.model.norm.weight
        bias = torch.full((len(table),), BEGINS)
        bias[self._unsure] += thresholds.unsure
        bias[unknown] += thresholds.unknown
        choices = [*self._openers, self._unsure]
        table[self._openers, self._dims(TOPICS, TOPIC)] = CHOICE * reader.topics.weight
        # It stands behind one of them, too, where it is as loud as the marker's: so it must be small.
        table[choices, self._first + BIAS] = CHOICE / LIFT * bias[choices]
        falls = {self._unsure: NEVER, unknown: NEVER, self._or_else: -GOES_ON, self._markers.end: -ENDS}
        table[list(falls), self._first + COPYING] = CHOICE / DEEP * torch.tensor(list(falls.values()))
        gain = self._lengths[CHOOSER][-1] / CHOICE / (1 + self._loud)
        norm[self._dims(TOPICS, TOPIC + 1)], norm[self._first + COPYING] = gain, -gain

    def place_average(self, reader: Reader) -> None:
        """Layer 0: the assistant's marker averages the words, all others look at what their part begins with."""
        layer, query, key, value = self._look(0)
        layer.input_layernorm.weight[self._dims(0, TOPICS)] = 1 / QUIET
        layer.input_layernorm.weight[self._dims(WEIGHTS, KINDS.stop - WEIGHTS)] = 1 / QUIET
        for head, (at, width) in enumerate(zip(AT_WEIGHTS, WIDTHS, strict=True)):
            query[head, at, CHOOSER] = math.sqrt(self._head)  # what attention divides by
            key[at, WEIGHTS + head], key[at, WORD] = 1.0, IS_WORD
            said = reader.sum.weight.split(WIDTHS, 1)[head]
            self._output(layer, head)[TOPICS : TOPICS + TOPIC, :width] = GAIN * said
        value[:WORDS, :WORDS] = torch.eye(WORDS)
        value[WORDS : WORDS + len(NOTED), list(NOTED)] = torch.eye(len(NOTED))
        note = {kind: WORDS + number for number, kind in enumerate(NOTED)}
        written = self._output(layer, 0)
        written[TOPICS : TOPICS + TOPIC, note[WORD]], written[BIAS, note[WORD]] = reader.start, 1.0
        # All other tokens look with the first head at the end of the question, where nothing is written.
        query[0, AT_END, [WORD, UNSURE, OR_ELSE, OPENER, END]] = query[1, AT_END, END] = LOOKING
        key[AT_END, END] = 1.0
        query[1, AT_PART, [WORD, USER, UNSURE, OR_ELSE, OPENER]] = LOOKING
        key[AT_PART, [USER, CHOOSER, OR_ELSE]] = torch.tensor([1.0, 2.0, 3.0])
        for part, kind in ((QUESTION, USER), (FIRST, CHOOSER), (SECOND, OR_ELSE)):
            self._output(layer, 1)[part, note[kind]] = 1.0

    def place_copy(self, reader: Reader) -> None:
        """Layer 1: a further choice gets a copy of the marker's topic, and what `again` makes of the first answer's."""
        layer, query, key, value = self._look(1)
        query[0, AT_MARKER, [UNSURE, OR_ELSE]] = query[1, AT_FIRST, [UNSURE, OR_ELSE]] = LOOKING
        key[AT_MARKER, CHOOSER] = key[AT_FIRST, OPENER] = 1.0
        query[:, AT_END, [WORD, *BEGINNINGS, OPENER, END]], key[AT_END, END] = LOOKING, RESTS
        value[: TOPIC + 1, TOPICS : BIAS + 1] = torch.eye(TOPIC + 1)
        self._output(layer, 0)[TOPICS : BIAS + 1, : TOPIC + 1] = torch.eye(TOPIC + 1)
        again = self._lengths[OPENER][1] / self._lengths[CHOOSER][1] / CHOICE * reader.again.weight
        self._output(layer, 1)[TOPICS : TOPICS + TOPIC, :TOPIC] = again
        for weight in (query, key, value):
            weight.mul_(FAR)

    def place_choice(self) -> None:
        """Layer 2: the scores become loud where an answer begins, and fall there and within a first answer."""
        layer, query, key, value = self._look(2)
        for at, kind in zip(AT_ITSELF, BEGINNINGS, strict=True):
            query[0, at, kind], key[at, kind] = LOOKING, 1.0
        # Tokens of answers look at the last one before them that a choice stands behind.
        query[1, AT_COPIER, [WORD, OPENER]], key[AT_COPIER, [UNSURE, OR_ELSE]] = LOOKING, torch.tensor([1.0, 15.0])
        query[:, AT_END, [WORD, OPENER, END]], query[1, AT_END, BEGINNINGS], key[AT_END, END] = LOOKING, LOOKING, RESTS
        value[: TOPIC + 1, TOPICS : BIAS + 1] = torch.eye(TOPIC + 1)
        self._output(layer, 0)[TOPICS : TOPICS + TOPIC, :TOPIC] = self._loud * torch.eye(TOPIC)
        self._output(layer, 0)[BIAS, TOPIC] = self._loud * LIFT
        of_unsure, of_or_else = TOPIC + 1, TOPIC + 2
        value[of_unsure, UNSURE] = value[of_or_else, OR_ELSE] = 1.0
        self._output(layer, 0)[COPYING, [of_unsure, of_or_else]] = self._loud * DEEP
        self._output(layer, 1)[COPYING, of_unsure] = (
            self._loud * DEEP * self._lengths[WORD][-1] / self._lengths[CHOOSER][-1]
        )
        for weight in (query, key, value):
            weight.mul_(FAR)

    def place_parts(self) -> None:
        """Behind layer 0: no token of an answer looks at an earlier part."""
        of_question, of_first = RESERVED
        for number, layer in enumerate(self._whole.model.layers[1:], start=1):
            norm = layer.input_layernorm.weight
            norm[self._dims(TOPICS, TOPIC + 1)] = self._lengths[CHOOSER][number] / FAR
            norm[self._dims(QUESTION, 3)] = self._lengths[WORD][number]
            for kind, lengths in self._lengths.items():
                norm[self._first + kind] = lengths[number] / (QUIET * lengths[0]) / FAR
            query, key = (
                projection.weight.unflatten(0, (-1, self._head))[:-count, :, self._first :]
                for projection, count in ((layer.self_attn.q_proj, HEADS), (layer.self_attn.k_proj, 1))
            )
            query[:, of_question, [FIRST, SECOND]] = query[:, of_first, SECOND] = -BLIND
            key[:, of_question, QUESTION] = key[:, of_first, FIRST] = 1.0

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
