"""The text frontend of a model: its tokenizer and chat template. Only this module loads them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from app.checkpoint.text_files import FolderText, TextFiles
from app.config.settings import ModelConfig
from app.contract.errors import ModelRefused
from app.text.answer.answer_format import AnswerFormat
from app.text.template.chat_template import ChatTemplate, trying_templates
from app.text.tokens.gguf import gguf_tokenizer
from app.text.tokens.tokenizer import Tokenizer

MAX_PLACEHOLDERS = 2**22


@dataclass(frozen=True, slots=True)
class TextFrontend:
    """Tokenizer and chat template of one model; without a template only completions are supported. Any thread.

    `is_chat_only` means that the model was trained only on its chat template, such as `guide` (`chat_only` in
    generation_config.json), and cannot continue other text. `answers` tells how answers to chats are parsed.
    """

    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    is_chat_only: bool = False
    answers: AnswerFormat = field(default_factory=AnswerFormat)

    @classmethod
    def load(cls, settings: ModelConfig, files: TextFiles) -> TextFrontend:
        """Read the text files of a model, and the template file of `settings` if one is set. Blocks.

        Raises:
            ModelRefused: a file of the model is missing, too large or damaged; the message names it.
            ConfigurationError: the same for the template file of `settings`.
        """
        override = None if settings.chat_template is None else Path(settings.chat_template)
        with trying_templates(files, override):
            tokenizer = load_tokenizer(files, settings.load_format)
            template = ChatTemplate.load(files, tokenizer, override)
        if template is None:
            return cls(tokenizer, None)
        answers = AnswerFormat.of_template(
            template.tool_source,
            tokenizer.special_tokens,
            tool_parser=settings.tool_parser,
            reasoning_parser=settings.reasoning_parser,
            takes_several_calls=template.findings.takes_several_calls,
        )
        return cls(tokenizer, template, files.is_chat_only, answers)

    def as_question(self, prompt: str, *, max_tokens: int | None = None) -> list[int] | None:
        """Return the token ids of a text prompt as a user's message for a chat-only model; None for others.

        Such a model cannot continue a text, so it answers it.

        Raises:
            InvalidValue, ContextLengthExceeded: see ChatTemplate.render.
        """
        if self.chat_template is None or not self.is_chat_only:
            return None
        return self.chat_template.render([{"role": "user", "content": prompt}], max_tokens=max_tokens)


def load_tokenizer(files: TextFiles, load_format: str) -> Tokenizer:
    """Load the tokenizer of a model; with `load_format` "dummy" a folder's missing one is a placeholder. Blocks.

    Raises:
        ModelRefused: a file is missing, too large or damaged; the message names it.
    """
    from_folder = _load_or_place if load_format == "dummy" else Tokenizer.load
    return files.make_tokenizer(from_folder, gguf_tokenizer.load)


def _load_or_place(text: FolderText) -> Tokenizer:
    """Return the tokenizer of a folder, or a placeholder if it has none; raises as `load_tokenizer` does."""
    if (text.folder / "tokenizer.json").exists():
        return Tokenizer.load(text)
    vocab_size = text.read("config.json").get("vocab_size")
    if not isinstance(vocab_size, int) or not 1 <= vocab_size <= MAX_PLACEHOLDERS:
        raise ModelRefused(
            f"{text.folder / 'config.json'}: vocab_size is {str(vocab_size)[:80]}; it must be an integer between 1 and "
            f"{MAX_PLACEHOLDERS}.",
            param="model",
        )
    return placeholder_tokenizer(vocab_size)


def placeholder_tokenizer(vocab_size: int) -> Tokenizer:
    """Return a tokenizer whose first 256 ids are bytes; the text of every further id is a space and its number."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = alphabet[:vocab_size] + [f"Ġ{index}" for index in range(len(alphabet), vocab_size)]
    backend = tokenizers.Tokenizer(models.BPE({piece: index for index, piece in enumerate(pieces)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    return Tokenizer(backend, {})
