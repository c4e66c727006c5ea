"""Chat templates: turns messages into prompt token ids, with the model's Jinja template in a sandbox.

Special tokens written by the template become tokens; the same text inside a message stays text (see `spelled_tokens`).
Messages without the text of special tokens are encoded exactly as transformers does. A special token that the template
builds from a message (`'<|' + message.role + '|>'`) is not detected, so callers must only allow known roles.
"""

from __future__ import annotations

from pathlib import Path

from jinja2 import TemplateError, TemplateSyntaxError

from app.checkpoint.folder import read_json
from app.checkpoint.gguf_files import GgufMetadata
from app.contract.errors import ConfigurationError, InvalidValue, ModelRefused
from app.text.gguf_tokenizer import chat_templates
from app.text.spelled_tokens import SpelledTokens, strings
from app.text.template_allowance import MAX_EXPANSION, MAX_EXTRA_CHARS, TemplateTooCostly, new_allowance
from app.text.template_sandbox import compile_template
from app.text.template_trial import is_bundled, try_template
from app.text.tokenizer import Tokenizer

MAX_TEMPLATE_BYTES = 2**20
MAX_REASON_CHARS = 200


class ChatTemplate:
    """One compiled template of one model. Any thread."""

    def __init__(self, source: str, tokenizer: Tokenizer) -> None:
        self._template = compile_template(source)
        self._tokenizer = tokenizer
        self._spelled = SpelledTokens(tokenizer.special_tokens)

    @classmethod
    def load(
        cls, source: Path | GgufMetadata, tokenizer: Tokenizer, override: Path | None = None
    ) -> ChatTemplate | None:
        """Return the template in `override`, else the model's, else None. Blocks.

        A folder's is in chat_template.jinja, else in tokenizer_config.json.

        Raises:
            ConfigurationError: `override` is missing, too large, or not a valid template.
            ModelRefused: the same for the model's template.
        """
        try:
            file, text = _find_template(source) if override is None else (override, _read(override))
        except (OSError, ValueError) as error:
            problem = f"The chat template cannot be read ({error})"
        else:
            if text is None:
                return None
            try:
                template = cls(text, tokenizer)
                reason = None if is_bundled(file) else try_template(text)
                if reason is None:
                    return template
            except TemplateSyntaxError as error:
                reason = f"line {error.lineno}: {(error.message or '')[:MAX_REASON_CHARS]}"
            except Exception as error:  # jinja2 compiles templates to Python, whose compiler has limits
                reason = f"{type(error).__name__}: it is nested too deeply"
            problem = f"{file} contains no usable chat template ({reason})"
        reject = ModelRefused if override is None else ConfigurationError
        param = "model" if override is None else "chat_template"
        raise reject(f"{problem}; set a working one with --chat-template FILE.", param=param)

    def render(
        self,
        messages: list[dict[str, object]],
        *,
        add_generation_prompt: bool = True,
        enable_thinking: bool | None = None,
        max_tokens: int | None = None,
    ) -> list[int]:
        """Return the prompt's token ids; see `Tokenizer.encode` for `max_tokens`.

        Fields that are None are dropped; a list of text parts becomes one text, with a line per part.
        `enable_thinking` is passed to the template only if it is not None.

        Raises:
            InvalidValue: the template rejects or cannot render these messages, or one contains a lone surrogate.
            ContextLengthExceeded: the prompt has certainly more than `max_tokens` tokens.
        """
        options = {} if enable_thinking is None else {"enable_thinking": enable_thinking}
        marked, marks = self._spelled.mark([_normal(message) for message in messages], max_tokens=max_tokens)
        text = self._render(marked, add_generation_prompt=add_generation_prompt, **options)
        try:
            return self._tokenizer.encode_parts(self._spelled.split(text, marks), max_tokens=max_tokens)
        except InvalidValue as error:
            raise InvalidValue(error.message, param="messages") from None

    def _render(self, messages: list[dict[str, object]], **options: object) -> str:
        num_given = sum(map(len, strings(messages)))
        max_chars = MAX_EXTRA_CHARS + MAX_EXPANSION * num_given
        chunks, num_chars = [], 0
        variables = {**self._tokenizer.named_tokens, "tools": None, "documents": None, **options}
        try:
            with new_allowance(num_given):
                for chunk in self._template.generate(messages=messages, **variables):
                    chunks.append(chunk)
                    num_chars += len(chunk)
                    if num_chars > max_chars:
                        raise TemplateTooCostly(f"more than {max_chars} characters")
        except TemplateError as error:
            problem = f"The model's chat template rejects these messages: {(error.message or '')[:MAX_REASON_CHARS]}"
        except Exception as error:  # a template can raise any exception
            problem = f"The model's chat template cannot render these messages ({type(error).__name__})."
        else:
            return "".join(chunks)
        raise InvalidValue(problem, param="messages")


def _find_template(source: Path | GgufMetadata) -> tuple[Path, str | None]:
    """Return the file of the model's template, and the template, or None if it has none."""
    if isinstance(source, GgufMetadata):
        return source.file, chat_templates(source.fields).get("default")
    file = source / "chat_template.jinja"
    if file.exists():
        return file, _read(file)
    file = source / "tokenizer_config.json"
    template = read_json(file).get("chat_template") if file.exists() else None
    if isinstance(template, list):
        named = [item for item in template if isinstance(item, dict) and item.get("name") == "default"]
        template = named[-1].get("template") if named else None
    return file, template if isinstance(template, str) else None


def _read(file: Path) -> str:
    if file.stat().st_size > MAX_TEMPLATE_BYTES:
        raise ValueError(f"{file} is larger than {MAX_TEMPLATE_BYTES} bytes")
    return file.read_text(encoding="utf-8")


def _normal(message: dict[str, object]) -> dict[str, object]:
    """Drop fields that are None, as transformers does, and join text parts: most templates expect strings."""
    fields = {name: value for name, value in message.items() if value is not None}
    parts = fields.get("content")
    if isinstance(parts, list) and all(isinstance(part, dict) and part.get("type") == "text" for part in parts):
        fields["content"] = "\n".join(str(part.get("text", "")) for part in parts)
    return fields
