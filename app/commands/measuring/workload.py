"""The benchmarks' workload: model shapes, and random requests from a seed. No torch."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path


def _llama(hidden: int, layers: int, heads: tuple[int, int], ffn: int, vocab: int) -> dict[str, object]:
    """Return the config.json of a Llama with tied embeddings; `heads` are the numbers of query and KV heads."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "num_hidden_layers": layers,
        "num_attention_heads": heads[0],
        "num_key_value_heads": heads[1],
        "head_dim": 64,
        "vocab_size": vocab,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": None,
        "eos_token_id": None,
        "dtype": "bfloat16",
    }


SHAPES: dict[str, dict[str, object]] = {
    "tiny": _llama(256, 8, (4, 2), 1024, 4096),
    "s135": _llama(576, 30, (9, 3), 1536, 49152),
    "q05": _llama(896, 24, (14, 2), 4864, 151936),
}
"""Model shapes by name: config.json alone, run with random weights."""

MIN_PROMPT, MAX_PROMPT = 64, 256
MIN_NEW, MAX_NEW = 64, 128


@dataclass(frozen=True, slots=True)
class Workload:
    """The requests: prompts as token ids, and the number of new tokens of each."""

    prompts: tuple[tuple[int, ...], ...]
    num_new_tokens: tuple[int, ...]

    @property
    def num_prompt_tokens(self) -> int:
        """Prompt tokens of all requests."""
        return sum(map(len, self.prompts))

    def first(self, count: int) -> Workload:
        """Return the first `count` requests."""
        return Workload(self.prompts[:count], self.num_new_tokens[:count])


def random_workload(num_requests: int, vocab_size: int, seed: int = 0) -> Workload:
    """Return requests with 64-256 random prompt ids and 64-128 new tokens each."""
    rng = random.Random(seed)
    lengths = [(rng.randint(MIN_PROMPT, MAX_PROMPT), rng.randint(MIN_NEW, MAX_NEW)) for _ in range(num_requests)]
    prompts = tuple(tuple(rng.randrange(vocab_size) for _ in range(length)) for length, _ in lengths)
    return Workload(prompts, tuple(new for _, new in lengths))


def write_shape(shape: str, folder: Path) -> Path:
    """Write the config.json of a named shape into `folder` and return the folder."""
    (folder / "config.json").write_text(json.dumps(SHAPES[shape]))
    return folder
