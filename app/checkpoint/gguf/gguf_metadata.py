"""The metadata of a model's GGUF files, and what they say of its text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from app.checkpoint.checkpoint_folder import rejected
from app.checkpoint.gguf.gguf_header import Value
from app.checkpoint.text_files import FolderText, Templates

TEMPLATE_KEY = "tokenizer.chat_template"
MAX_TEMPLATES = 64
_Tokenizer = TypeVar("_Tokenizer")


@dataclass(frozen=True, slots=True)
class GgufMetadata:
    """Implements `TextFiles` by the metadata of a model: values by key. `file` is the first file, for messages."""

    file: Path
    fields: Mapping[str, Value]

    @property
    def is_chat_only(self) -> bool:
        """Never: no key says so."""
        return False

    @property
    def templates(self) -> Templates:
        """The templates among the metadata."""
        found = chat_templates(self.fields)
        return Templates(self.file, found.get("default"), found.get("tool_use"))

    def make_tokenizer(
        self,
        from_folder: Callable[[FolderText], _Tokenizer],
        from_metadata: Callable[[Mapping[str, object]], _Tokenizer],
    ) -> _Tokenizer:
        """Make a tokenizer with `from_metadata`."""
        return from_metadata(self.fields)


def chat_templates(fields: Mapping[str, object]) -> dict[str, str]:
    """Return the chat templates by name; the one that is used without a name is "default".

    Raises:
        ModelRefused: a template is not a text, or there are too many.
    """
    keys = [key for key in fields if key == TEMPLATE_KEY or key.startswith(f"{TEMPLATE_KEY}.")]
    if len(keys) > MAX_TEMPLATES:
        raise rejected(f"The GGUF file has {len(keys)} chat templates; at most {MAX_TEMPLATES} are allowed.")
    found: dict[str, str] = {}
    for key in keys:
        template = fields[key]
        if not isinstance(template, str):
            raise rejected(f"{key:.80} is not a text; choose a template with --chat-template FILE.")
        found[key[len(TEMPLATE_KEY) + 1 :] or "default"] = template
    return found


def decimal(value: float) -> float:
    """Return the decimal number that was meant by a float32."""
    return float(f"{value:.7g}")
