"""Checkpoints of real sizes that cost nothing: `guide`'s tokenizer, no weights, and what `guide` hides.

`long` has a context of 262,144 tokens, `wide` a vocabulary of 151,936, `experts` 64 experts, of which each token gets
one. They are one layer and run with `--load-format dummy`. They have no end token: an answer has as many tokens as it
may have.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

GUIDE = Path(__file__).resolve().parents[1] / "app" / "models" / "guide"

CHANGES: dict[str, dict[str, Any]] = {
    "long": {"max_position_embeddings": 262_144},
    "wide": {"max_position_embeddings": 32_768, "vocab_size": 151_936},
    "experts": {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "max_position_embeddings": 32_768,
        "moe_intermediate_size": 768,
        "num_experts": 64,
        "num_experts_per_tok": 1,
    },
}
"""What each one's config.json changes in that of `guide`."""


def write_checkpoint(name: str, folder: Path) -> Path:
    """Write one of them into a new `folder`, to be loaded with `--load-format dummy`; return the folder."""
    folder.mkdir(parents=True)
    config = json.loads((GUIDE / "config.json").read_text())
    config |= {"num_hidden_layers": 1, "eos_token_id": None} | CHANGES[name]
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    tokenizer_config = json.loads((GUIDE / "tokenizer_config.json").read_text())
    tokenizer_config["model_max_length"] = config["max_position_embeddings"]
    del tokenizer_config["eos_token"]  # as in config.json: the tokenizer's own would end answers too
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config))
    tokenizer = json.loads((GUIDE / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    # Further tokens have a text, so that answers show, but no merges: no prompt is ever encoded to them.
    for token_id in range(len(vocabulary), config["vocab_size"]):
        vocabulary[f"Ġw{token_id}"] = token_id
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return folder
