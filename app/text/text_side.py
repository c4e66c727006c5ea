"""The text side of a model: what makes token ids of prompts and text of token ids. Loaded here and nowhere else."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from app.checkpoint import read_json
from app.config import ModelConfig
from app.errors import ModelRefused
from app.text.chat_template import ChatTemplate
from app.text.placeholder import placeholder_tokenizer
from app.text.tokenizer import Tokenizer

MAX_VOCABULARY = 2**22


@dataclass(frozen=True, slots=True)
class TextSide:
    """Tokenizer and chat template of one model; one without a template does completions only. Any thread."""

    tokenizer: Tokenizer
    chat_template: ChatTemplate | None

    @classmethod
    def load(cls, settings: ModelConfig, folder: Path) -> TextSide:
        """Read the files of `folder`, and the template file of `settings` where one is set. Blocks.

        Raises:
            ModelRefused: a file of the model is missing, too large or damaged; the message names it.
            ConfigurationError: the same for the template file that was set.
        """
        tokenizer = load_tokenizer(folder, settings.load_format)
        override = None if settings.chat_template is None else Path(settings.chat_template)
        return cls(tokenizer, ChatTemplate.load(folder, tokenizer, override))


def load_tokenizer(folder: Path, load_format: str) -> Tokenizer:
    """Load the tokenizer of `folder`; with `load_format` "dummy" a missing one is replaced by a placeholder. Blocks.

    Raises:
        ModelRefused: a file is missing, too large or damaged; the message names it.
    """
    if load_format != "dummy" or (folder / "tokenizer.json").exists():
        return Tokenizer.load(folder)
    vocab_size = read_json(folder / "config.json").get("vocab_size")
    if not isinstance(vocab_size, int) or not 1 <= vocab_size <= MAX_VOCABULARY:
        raise ModelRefused(
            f"{folder / 'config.json'}: vocab_size is {str(vocab_size)[:80]}; it must be an integer between 1 and "
            f"{MAX_VOCABULARY}.",
            param="model",
        )
    return placeholder_tokenizer(vocab_size)
