"""What a model's files say of its text, whatever their format: chat templates, and what its tokenizer is made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from app.checkpoint.checkpoint_folder import check_no_pointer, read_json
from app.config.unicode_text import read_unicode
from app.runtime.lazy_property import lazy_property

MAX_TEMPLATE_BYTES = 2**20
_Tokenizer = TypeVar("_Tokenizer")


class Templates(NamedTuple):
    """The file of a model's chat templates, the template, and the one for chats with tools; None for each it lacks."""

    file: Path
    default: str | None
    for_tools: str | None = None


class TextFiles(Protocol):
    """Where tokenizer and chat templates come from: a folder, or the metadata of a GGUF file."""

    @property
    def is_chat_only(self) -> bool:
        """Whether the model was trained only on its chat template, and cannot continue other text."""

    @property
    def templates(self) -> Templates:
        """The chat templates. Blocks.

        Raises:
            OSError, ValueError: the file cannot be read, or is too large.
            ModelRefused: it is damaged; the message names it.
        """

    def make_tokenizer(
        self,
        from_folder: Callable[[FolderText], _Tokenizer],
        from_metadata: Callable[[Mapping[str, object]], _Tokenizer],
    ) -> _Tokenizer:
        """Make a tokenizer with the function for these files: those of a folder, or the metadata of a GGUF file."""


class FolderText:
    """Implements `TextFiles` for a checkpoint's folder; each file is read once, when it is needed. One thread.

    `known` are JSON files that have been read already, by name.
    """

    def __init__(self, folder: Path, known: Mapping[str, dict[str, Any]] | None = None) -> None:
        self.folder = folder
        self._objects = dict(known or {})

    def read(self, name: str) -> dict[str, Any]:
        """Return the object in a JSON file of the folder; an empty one if there is no such file. Blocks.

        Raises:
            ModelRefused: the file is too large or damaged; the message names it.
        """
        if name not in self._objects:
            file = self.folder / name
            self._objects[name] = read_json(file) if file.exists() else {}
        return self._objects[name]

    @property
    def is_chat_only(self) -> bool:
        """Whether generation_config.json says `chat_only`."""
        return self.read("generation_config.json").get("chat_only") is True

    @lazy_property
    def templates(self) -> Templates:
        """The templates of chat_template.jinja, else those of tokenizer_config.json.

        transformers writes further templates into the folder `additional_chat_templates`.
        """
        file, more = self.folder / "chat_template.jinja", self.folder / "additional_chat_templates/tool_use.jinja"
        if file.exists():
            return Templates(file, read_template(file), read_template(more) if more.exists() else None)
        name = "tokenizer_config.json"
        template = self.read(name).get("chat_template")
        named: dict[str, object] = {"default": template}
        if isinstance(template, list):
            named = {str(item.get("name")): item.get("template") for item in template if isinstance(item, dict)}
        texts = {name: text for name, text in named.items() if isinstance(text, str)}
        default = texts.get("default")
        return Templates(self.folder / name, default, None if default is None else texts.get("tool_use"))

    def make_tokenizer(
        self,
        from_folder: Callable[[FolderText], _Tokenizer],
        from_metadata: Callable[[Mapping[str, object]], _Tokenizer],
    ) -> _Tokenizer:
        """Make a tokenizer with `from_folder`."""
        return from_folder(self)


def read_template(file: Path) -> str:
    """Return the template in `file`. Blocks.

    Raises:
        OSError, ValueError: it cannot be read, or is too large.
        ModelRefused: it is only a pointer to the file in Git LFS.
    """
    if file.stat().st_size > MAX_TEMPLATE_BYTES:
        raise ValueError(f"{file} is larger than {MAX_TEMPLATE_BYTES} bytes")
    text = read_unicode(file)
    check_no_pointer(file, text.encode())
    return text
