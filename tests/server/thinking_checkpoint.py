"""`guide` with a template that has tools and reasoning, whose marks are tokens of their own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from app.checkpoint.names import resolve

MARKS = ("<think>", "</think>")
TEMPLATE = """{%- if tools %}<|system|>Call a tool as <tool_call>
{"name": "...", "arguments": {...}}
</tool_call>: {{ tools | tojson }}<|end|>{% endif %}
{%- for message in messages %}
    {{- '<|' + message.role + '|>' + message.content.split('</think>')[-1] + '<|end|>' }}
{%- endfor %}
{%- if add_generation_prompt %}<|assistant|>{% if enable_thinking %}<think>
{% endif %}{% endif %}"""


def write_thinking_checkpoint(folder: Path) -> Path:
    """Write the checkpoint into a new folder, and return it; the weights are those of `guide`."""
    guide = Path(resolve("guide"))
    folder.mkdir()
    for name in ("config.json", "generation_config.json", "model.safetensors"):
        (folder / name).symlink_to(guide / name)
    settings = json.loads((guide / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "chat_template": TEMPLATE}))
    tokenizer = json.loads((guide / "tokenizer.json").read_text())
    _rename_last(tokenizer, MARKS)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return folder


def _rename_last(tokenizer: dict[str, Any], marks: tuple[str, ...]) -> None:
    """Give the last tokens of the vocabulary, which no merge needs, other texts."""
    vocabulary, merges = tokenizer["model"]["vocab"], tokenizer["model"]["merges"]
    names = sorted(vocabulary, key=vocabulary.__getitem__)[-len(marks) :]
    for name, mark in zip(names, marks, strict=True):
        token_id = vocabulary.pop(name)
        vocabulary[mark] = token_id
        merges[:] = [merge for merge in merges if "".join(merge if isinstance(merge, list) else merge.split()) != name]
        tokenizer["added_tokens"].append(
            {
                "id": token_id,
                "content": mark,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": False,
            }
        )
