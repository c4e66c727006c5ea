"""A smoke test without a download: how likely `guide` finds its answers to questions that it never saw.

It has the answers by heart, so this says whether quantization works, and not what it costs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch

from app.checkpoint.checkpoint_folder import EMBEDDED
from app.checkpoint.names import resolve
from app.checkpoint.text_files import FolderText
from app.config.settings import ModelConfig
from app.text.entry.frontend import TextFrontend
from app.text.template.chat_template import RenderOptions
from benchmarks.perplexity.scored_model import ScoredModel
from training.guide.corpus import load_corpus

PLAIN = "guide"
WAYS: dict[str, dict[str, object]] = {
    PLAIN: {},
    "guide, int8": {"quantization": "int8"},
    "guide, int4": {"quantization": "int4"},
    "guide, int8 KV cache": {"kv_cache_dtype": "int8"},
    "guide, int8, int8 KV cache": {"quantization": "int8", "kv_cache_dtype": "int8"},
}


class Text(NamedTuple):
    """A question as the model sees it, and the tokens of its answer."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]


def held_out_texts(every: int = 1) -> list[Text]:
    """Return every n-th held-out question with the answer of its topic, in the chat template of `guide`."""
    corpus, template = load_corpus(), TextFrontend.load(ModelConfig(), FolderText(resolve(EMBEDDED))).chat_template
    assert template is not None
    texts = []
    for item in corpus.held_out[::every]:
        question: dict[str, object] = {"role": "user", "content": item.question}
        answer: dict[str, object] = {"role": "assistant", "content": corpus.answers[item.topic]}
        prompt = template.render([question])
        full = template.render([question, answer], RenderOptions(add_generation_prompt=False))
        assert full[: len(prompt)] == prompt
        texts.append(Text(tuple(prompt), tuple(full[len(prompt) :])))
    return texts


@torch.inference_mode()
def perplexity(texts: Sequence[Text], **settings: object) -> float:
    """Return the perplexity of the answers for `guide`, loaded with `settings`."""
    model = ScoredModel({"model": EMBEDDED, **settings})
    total, num_tokens = 0.0, 0
    for text in texts:
        logits_TV = model.logits(text.prompt + text.answer[:-1], first=len(text.prompt) - 1)
        logprobs_TV = torch.log_softmax(logits_TV.double(), dim=-1)
        total -= float(logprobs_TV.gather(1, torch.tensor(text.answer)[:, None]).sum())
        num_tokens += len(text.answer)
    return math.exp(total / num_tokens)
