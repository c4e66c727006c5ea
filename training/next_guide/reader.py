"""The half of the model that reads the question and decides which answer begins.

It is a small Llama of its own in dimensions that the reciter (reciter.py) never touches (join.py puts them together):

1. layer 0: each token looks up in which message it stands, from the last marker before it;
2. layer 1: where an answer begins, the words of the last question are added up, each with a weight of its own;
3. the sum is compared with one vector for each topic.

This is a bag of words on purpose. On questions of people who saw none of the wordings it was better than any deeper
reading that these wordings can teach.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from training.guide.corpus import UNKNOWN, Corpus, read_words
from training.guide.questions import Questions
from training.next_guide.batches import Batch, Example, pack
from training.next_guide.model import GuideModel, rotate
from training.next_guide.reciter import system_prompt
from training.next_guide.tokenizer import GuideTokenizer, as_read

WORDS = 64  # dimensions of a token, of which the last ROLE say in which message it stands
ROLE = 8
SIGNS = 5  # the first dimensions of a token say what kind of token it is
TOPIC = 62  # dimensions of a topic
PAIR = 19  # turns once in about 1,500 tokens
HEADS, HEAD_DIM = 2, 64  # two query heads, one head of keys and values
EARLIER_TURN, SYSTEM, SECOND_ANSWER = 0.1, 0.06, 0.15  # shares of the examples
GAIN = 6.0
DROPPED_WORDS = 0.2
AUGMENTED = 0.25  # share of the questions that are said in other words; the others are as they were written
DROPOUT = 0.2
SHOWN_OF_ANSWER = 8  # tokens at either end
MIN_WIDTH = 128


class Look(nn.Module):
    """One attention without norms: what it reads is scaled by the caller."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.q_proj = nn.Linear(WORDS, HEADS * HEAD_DIM, bias=False)
        self.k_proj = nn.Linear(WORDS, HEAD_DIM, bias=False)
        self.v_proj = nn.Linear(WORDS, HEAD_DIM, bias=False)
        self.o_proj = nn.Linear(HEADS * HEAD_DIM, size, bias=False)

    def forward(self, x_RTW: Tensor, rotary: tuple[Tensor, Tensor], mask: Tensor) -> Tensor:
        """Attend over `x`."""
        rows, length, _ = x_RTW.shape
        q_RNTH = rotate(self.q_proj(x_RTW).view(rows, length, HEADS, -1).transpose(1, 2), rotary)
        k_R1TH = rotate(self.k_proj(x_RTW)[:, None], rotary).expand(-1, HEADS, -1, -1)
        v_R1TH = self.v_proj(x_RTW)[:, None].expand(-1, HEADS, -1, -1)
        out_RNTH = functional.scaled_dot_product_attention(q_RNTH, k_R1TH, v_R1TH, attn_mask=mask)
        out: Tensor = self.o_proj(out_RNTH.transpose(1, 2).reshape(rows, length, -1))
        return out


class Reader(nn.Module):
    """The words, the two looks, and the topics' vectors."""

    def __init__(self, tokenizer: GuideTokenizer, openers: Sequence[int], scale: Tensor) -> None:
        super().__init__()
        self.words = nn.Embedding(tokenizer.vocab_size, WORDS)
        self.role, self.sum = Look(ROLE), Look(TOPIC)
        self.dropout = nn.Dropout(DROPOUT)
        self.topics = nn.Linear(TOPIC, len(openers), bias=False)
        self.scale = nn.Buffer(scale)
        """What the scales of the reciter's norms are divided by, so that they are about 1."""
        # Where a second answer begins the question is read as where the first one did.
        alias = torch.arange(tokenizer.vocab_size)
        alias[[tokenizer.unsure, tokenizer.or_else]] = tokenizer.markers.assistant
        self.alias = nn.Buffer(alias, persistent=False)
        for name, weight in self.named_parameters():
            nn.init.normal_(weight, std=0.1 if name == "words.weight" else 2 * weight.shape[1] ** -0.5)
        nn.init.normal_(self.sum.q_proj.weight, std=0.01)  # all words count alike at first
        self._look_where_the_question_is(tokenizer, openers)

    @torch.no_grad()
    def _look_where_the_question_is(self, tokenizer: GuideTokenizer, openers: Sequence[int]) -> None:
        """Begin with what random weights find too slowly: which tokens are those of the last question.

        The first look finds the last marker before a token, and says whether it is a user's. Where an answer begins,
        the second look reads the nearest tokens of users' messages and the opener of a first answer; elsewhere it
        looks at the user's marker, which says nothing. Scores of a rotary pair fall slowly with the distance.
        """
        markers = tokenizer.markers
        is_any, is_marker, is_user, is_opener, is_chooser, of_user = 0, 1, 2, 3, 4, WORDS - 1
        self.words.weight[:, :SIGNS], self.words.weight[:, -ROLE:] = 0.0, 0.0
        self.words.weight[markers.user] = 0.0
        self.words.weight[:, is_any] = 1.0
        self.words.weight[[markers.system, markers.user, markers.assistant], is_marker] = 1.0
        self.words.weight[markers.user, is_user] = 1.0
        self.words.weight[openers, is_opener] = 1.0
        self.words.weight[markers.assistant, is_chooser] = 1.0
        for look in (self.role, self.sum):
            for weight in (look.q_proj.weight, look.k_proj.weight):
                weight.mul_(0.1)
                for pair in (PAIR, PAIR + 1):
                    weight[pair::HEAD_DIM] = weight[pair + HEAD_DIM // 2 :: HEAD_DIM] = 0.0
        for look in (self.role, self.sum):
            look.v_proj.weight[:, :SIGNS] = 0.0
        self.role.q_proj.weight[PAIR::HEAD_DIM, is_any] = 34.0
        self.role.k_proj.weight[PAIR, is_marker] = 34.0
        self.role.v_proj.weight[0], self.role.o_proj.weight[-1] = 0.0, 0.0
        self.role.v_proj.weight[0, is_user] = 1.0
        self.role.o_proj.weight[-1, 0] = 1.0
        self.sum.q_proj.weight[PAIR::HEAD_DIM, is_chooser] = 13.0
        self.sum.k_proj.weight[PAIR, of_user], self.sum.k_proj.weight[PAIR, is_opener] = 13.0, 15.0
        self.sum.q_proj.weight[PAIR + 1 :: HEAD_DIM, is_any] = 18.0
        self.sum.q_proj.weight[PAIR + 1 :: HEAD_DIM, is_chooser] = -18.0
        self.sum.k_proj.weight[PAIR + 1, is_user] = 18.0

    def forward(self, batch: Batch, rotary: tuple[Tensor, Tensor], scales: Sequence[Tensor]) -> Tensor:
        """Score the topics where one is to be chosen (places x topics); `scales` are what the reciter's norms do."""
        first, second, last = (scale[..., None] / mean for scale, mean in zip(scales, self.scale, strict=True))
        x_RTW = self.words(self.alias[batch.ids_RT])
        role = self.role(x_RTW * first, rotary, batch.mask_R1TT)
        x_RTW = torch.cat([x_RTW[..., :-ROLE], x_RTW[..., -ROLE:] + role], -1)
        topic_RTC = GAIN * self.sum(x_RTW * second, rotary, batch.mask_R1TT) * last
        out: Tensor = self.topics(self.dropout(topic_RTC)[batch.topics_RT >= 0])
        return out


class Scales:
    """What the reciter's norms multiply by before the reader's two looks and at its end, guessed or true."""

    def __init__(self, reciter: GuideModel, sample: Sequence[Batch]) -> None:
        self._reciter = reciter
        first, second, last = (torch.cat(scales) for scales in zip(*map(self._flat, sample), strict=True))
        ids = torch.cat([batch.ids_RT.flatten() for batch in sample])
        is_chosen = torch.cat([batch.topics_RT.flatten() for batch in sample]) >= 0
        count = torch.bincount(ids, minlength=reciter.shape.vocab_size)
        total = torch.zeros(reciter.shape.vocab_size).index_add(0, ids, second)
        self._second = torch.where(count > 0, total / count.clamp(min=1), second.mean())
        self.means = torch.stack([first.mean(), second.mean(), last[is_chosen].mean()])

    def guess(self, batch: Batch) -> list[Tensor]:
        """Guess them: the first is exact, the second the mean of the token, the third that where a topic is chosen."""
        first = self._reciter.scales(batch.ids_RT, batch.positions_RT, batch.mask_R1TT, layers=0)[0]
        return [first, self._second[batch.ids_RT], self.means[2].expand_as(first)]

    def true(self, batch: Batch) -> list[Tensor]:
        """Compute them, which takes longer than all of the reader."""
        first, second, *_, last = self._reciter.scales(batch.ids_RT, batch.positions_RT, batch.mask_R1TT)
        return [first, second, last]

    def _flat(self, batch: Batch) -> list[Tensor]:
        return [scale.flatten() for scale in self.true(batch)]


class Readings:
    """Makes the reader's batches: questions of every topic equally often, at times with what may stand around them."""

    def __init__(self, corpus: Corpus, tokenizer: GuideTokenizer, seed: int) -> None:
        self._rng = random.Random(f"readings {seed}")
        self._tokenizer = tokenizer
        self._questions = Questions(corpus, self._rng)
        self._systems = read_words("system_prompts", separator="\n")
        self._answers = [tokenizer.encode(topic.answer) for topic in corpus.topics]
        self._written = [
            [tokenizer.encode(as_read(text)) for text in (*topic.wordings, *topic.keywords)] for topic in corpus.topics
        ]
        self._unknown = corpus.names.index(UNKNOWN)
        # What each topic was last taken for: a second answer is asked for mostly after one of these.
        self._rivals = [(number + 1) % len(self._answers) for number in range(len(self._answers))]

    def make(self, size: int) -> Batch:
        """Make a batch of `size` examples."""
        return pack([self._example() for _ in range(size)], width=MIN_WIDTH)

    def note_rivals(self, topics: Sequence[int], taken_for: Sequence[int]) -> None:
        """Remember what topics were taken for."""
        for topic, other in zip(topics, taken_for, strict=True):
            if topic != other:
                self._rivals[topic] = other

    def _example(self) -> Example:
        rng, tokenizer, markers, example = self._rng, self._tokenizer, self._tokenizer.markers, Example()
        topic = self._questions.next_topic()
        if rng.random() < SYSTEM:
            example.add(tokenizer.message(markers.system, system_prompt(self._systems, rng)))
        if rng.random() < EARLIER_TURN:
            earlier = self._questions.next_topic()
            self._add_question(example, earlier)
            example.add([markers.assistant])
            self._add_answer(example, earlier)
            example.add([markers.end])
        self._add_question(example, topic)
        if topic != self._unknown and rng.random() < SECOND_ANSWER:
            # Behind the right answer comes what it was last taken for, behind a wrong one the right one.
            first, second = topic, self._rivals[topic]
            if rng.random() < 0.5:
                first, second = second, first
            example.add([markers.assistant, tokenizer.unsure])
            self._add_answer(example, first)
            example.add([tokenizer.or_else], topic=second)
            return example
        example.add([markers.assistant], topic=topic)
        return example

    def _add_question(self, example: Example, topic: int) -> None:
        rng, markers = self._rng, self._tokenizer.markers
        if rng.random() < AUGMENTED:
            ids = self._tokenizer.encode(as_read(self._questions.ask(topic)))
        else:
            ids = rng.choice(self._written[topic])
        if rng.random() < 0.8:
            ids = [token for token in ids if rng.random() > DROPPED_WORDS] or ids
        example.add([markers.user, *ids, markers.end])

    def _add_answer(self, example: Example, topic: int) -> None:
        """Add the start of an answer and leave out most of the rest, which takes long and has nothing to say."""
        answer = self._answers[topic]
        example.add(answer[:SHOWN_OF_ANSWER])
        example.skip(max(0, len(answer) - 2 * SHOWN_OF_ANSWER))
        example.add(answer[SHOWN_OF_ANSWER:][-SHOWN_OF_ANSWER:])
