"""How publishers of models recommend to sample them, each with the public page that says so.

A model belongs to a row by its architecture and by what it is called: its name begins with that of the row. Only what a
publisher says of its own models is here; of Granite, OLMo, GLM-4 and Phi-4, for example, no publisher says anything.
What is recommended are values for chats: where a publisher's base models have the name without "instruct", that is one
of the words, and where it is "base" that the base models add, that excludes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

_SIZE = "SIZE"
_MAX_NAME_CHARS = 200


class Recommendation(NamedTuple):
    """One row: names in small letters that begin with the words of one of `beginnings`; SIZE is any size, as 0.6b.

    `without_thinking` are the values of answers before which the model is told not to think; None: the same.
    """

    family: str
    architectures: tuple[str, ...]
    beginnings: tuple[str, ...]
    values: Mapping[str, float]
    url: str
    without_thinking: Mapping[str, float] | None = None


_LLAMA, _MISTRAL = "LlamaForCausalLM", ("MistralForCausalLM", "LlamaForCausalLM")  # in GGUF files Mistral's are llamas
RECOMMENDATIONS = (
    Recommendation(
        "SmolLM2", (_LLAMA,), ("smollm2 SIZE instruct",), {"temperature": 0.2, "top_p": 0.9},
        "https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct",
    ),
    Recommendation(
        "SmolLM3", ("SmolLM3ForCausalLM",), ("smollm3",), {"temperature": 0.6, "top_p": 0.95},
        "https://huggingface.co/HuggingFaceTB/SmolLM3-3B",
    ),
    Recommendation(
        "DeepSeek-R1-Distill", (_LLAMA, "Qwen2ForCausalLM"), ("deepseek r1 distill",),
        {"temperature": 0.6, "top_p": 0.95},
        "https://huggingface.co/deepseek-ai/DeepSeek-R1#usage-recommendations",
    ),
    Recommendation(
        "QwQ-32B", ("Qwen2ForCausalLM",), ("qwq 32b",), {"temperature": 0.6, "top_p": 0.95, "top_k": 40, "min_p": 0.0},
        "https://huggingface.co/Qwen/QwQ-32B#usage-guidelines",
    ),
    Recommendation(
        "Qwen2.5", ("Qwen2ForCausalLM",), ("qwen2.5 SIZE instruct",),
        {"temperature": 0.7, "top_p": 0.8, "repetition_penalty": 1.05},
        "https://qwen.readthedocs.io/en/v2.5/deployment/vllm.html",
    ),
    Recommendation(
        "Qwen3-Instruct-2507", ("Qwen3ForCausalLM",), ("qwen3 SIZE instruct 2507",),
        {"temperature": 0.7, "top_p": 0.8, "top_k": 20, "min_p": 0.0},
        "https://huggingface.co/Qwen/Qwen3-4B-Instruct-2507#best-practices",
    ),
    Recommendation(
        "Qwen3-Thinking-2507", ("Qwen3ForCausalLM",), ("qwen3 SIZE thinking 2507",),
        {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0.0},
        "https://huggingface.co/Qwen/Qwen3-4B-Thinking-2507#best-practices",
    ),
    Recommendation(
        "Qwen3", ("Qwen3ForCausalLM",), ("qwen3 SIZE",),
        {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0.0},
        "https://huggingface.co/Qwen/Qwen3-0.6B#best-practices",
        without_thinking={"temperature": 0.7, "top_p": 0.8, "top_k": 20, "min_p": 0.0},
    ),
    Recommendation(
        "Llama 3, 3.1, 3.2, 3.3", (_LLAMA,),
        ("llama 3 SIZE instruct", "llama 3.1 SIZE instruct", "llama 3.2 SIZE instruct", "llama 3.3 SIZE instruct"),
        {"temperature": 0.6, "top_p": 0.9},
        "https://github.com/meta-llama/llama3/blob/main/example_chat_completion.py",
    ),
    Recommendation(
        "Magistral Small", _MISTRAL, ("magistral small",), {"temperature": 0.7, "top_p": 0.95},
        "https://huggingface.co/mistralai/Magistral-Small-2506#sampling-parameters",
    ),
    Recommendation(
        "Mistral Small 3, 3.1, 3.2", _MISTRAL,
        ("mistral small 24b instruct", "mistral small 3.1 24b instruct", "mistral small 3.2 24b instruct"),
        {"temperature": 0.15},
        "https://huggingface.co/mistralai/Mistral-Small-24B-Instruct-2501#usage",
    ),
    Recommendation(
        "Mistral Nemo", _MISTRAL, ("mistral nemo instruct",), {"temperature": 0.3},
        "https://huggingface.co/mistralai/Mistral-Nemo-Instruct-2407",
    ),
    Recommendation(
        "Phi-4-reasoning", ("Phi3ForCausalLM",), ("phi 4 reasoning",), {"temperature": 0.8, "top_p": 0.95, "top_k": 50},
        "https://huggingface.co/microsoft/Phi-4-reasoning#usage",
    ),
    Recommendation(
        "Gemma 3", ("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"), ("gemma 3 SIZE it",),
        {"temperature": 1.0, "top_p": 0.95, "top_k": 64},
        "https://huggingface.co/google/gemma-3-4b-it/blob/main/generation_config.json",
    ),
    Recommendation(
        "Seed-OSS", ("SeedOssForCausalLM",), ("seed oss SIZE instruct",), {"temperature": 1.1, "top_p": 0.95},
        "https://github.com/ByteDance-Seed/seed-oss#seed-oss-36b-instruct",
    ),
)  # fmt: skip
"""The rows; the first that a model belongs to counts."""


def recommendation(architecture: str, names: Iterable[str]) -> Recommendation | None:
    """Return the row of a model that is called `names`; None: there is none, or it is a base model. Any thread."""
    spelt = [_words(name) for name in names]
    if any("base" in words for words in spelt):
        return None
    for row in RECOMMENDATIONS:
        beginnings = [beginning.split() for beginning in row.beginnings]
        if architecture in row.architectures and any(_begins(words, each) for words in spelt for each in beginnings):
            return row
    return None


def _words(name: str) -> list[str]:
    """Return the words of a name, without the publisher's that Llama's have in front."""
    text = name[:_MAX_NAME_CHARS].lower()
    chars = (char if char.isalnum() or _is_point(text, place) else " " for place, char in enumerate(text))
    return "".join(chars).removeprefix("meta ").split()


def _is_point(text: str, place: int) -> bool:
    """Return whether there is a decimal point, as in 3.1, and not the point before an ending or a type of weights."""
    return text[place] == "." and text[:place][-1:].isdecimal() and text[place + 1 :][:1].isdecimal()


def _begins(words: Sequence[str], beginning: Sequence[str]) -> bool:
    pairs = zip(words, beginning, strict=False)
    is_long_enough = len(words) >= len(beginning)
    return is_long_enough and all(_is_size(word) if wanted == _SIZE else word == wanted for word, wanted in pairs)


def _is_size(word: str) -> bool:
    return word[-1] in "bm" and word[:-1].replace(".", "", 1).isdecimal()
