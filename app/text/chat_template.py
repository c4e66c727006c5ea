"""Chat templates: messages to prompt token ids, by the model's own Jinja template in a sandbox.

Special tokens that the template writes are tokens; the same spelling inside a message is text. Where a message spells
one, the spelling is put between two private-use characters that no message holds, the template is rendered, and what
stands between them is encoded as plain text. Messages without such spellings are encoded exactly as transformers
does. What a template builds of pieces (`'<|' + message.role + '|>'`) is not seen: callers allow known roles only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from itertools import chain, islice
from pathlib import Path
from typing import Any

from jinja2 import TemplateError, TemplateSyntaxError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from app.checkpoint import read_json
from app.errors import ConfigurationError, InvalidValue, ModelRefused
from app.text.tokenizer import Part, Tokenizer

MAX_TEMPLATE_BYTES = 2**20
MAX_RANGE = 10_000
# A template may repeat what it is given (system prompts do), but not without end.
MAX_EXPANSION = 4
MAX_EXTRA_CHARS = 2**20
MAX_REASON_CHARS = 200
_PRIVATE_USE = (range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE))


class ChatTemplate:
    """One compiled template of one model. Any thread."""

    def __init__(self, source: str, tokenizer: Tokenizer) -> None:
        self._template = _environment().from_string(source)
        self._tokenizer = tokenizer
        self._special = _any_of(tokenizer.special_tokens)

    @classmethod
    def load(cls, folder: Path, tokenizer: Tokenizer, override: Path | None = None) -> ChatTemplate | None:
        """Return the template in `override`, else in chat_template.jinja, else in tokenizer_config.json, else None.

        Blocks.

        Raises:
            ConfigurationError: `override` is missing, too large or no template.
            ModelRefused: the same for the model's own.
        """
        try:
            file, source = _find_source(folder) if override is None else (override, _read(override))
        except (OSError, ValueError) as error:
            problem = f"The chat template cannot be read ({error})"
        else:
            if source is None:
                return None
            try:
                return cls(source, tokenizer)
            except TemplateSyntaxError as error:
                reason = f"line {error.lineno}: {(error.message or '')[:MAX_REASON_CHARS]}"
            except Exception as error:  # jinja2 makes Python of it, whose compiler has limits of its own
                reason = f"{type(error).__name__}: it is nested too deeply"
            problem = f"{file} holds no valid chat template ({reason})"
        refuse = ModelRefused if override is None else ConfigurationError
        param = "model" if override is None else "chat_template"
        raise refuse(f"{problem}; give a right one with --chat-template FILE.", param=param)

    def render(
        self,
        messages: list[dict[str, object]],
        *,
        add_generation_prompt: bool = True,
        enable_thinking: bool | None = None,
    ) -> list[int]:
        """Return the prompt's token ids.

        Fields that are None count as absent; a list of text parts becomes one text, a line per part.
        `enable_thinking` reaches the template only where it is given.

        Raises:
            InvalidValue: the template refuses or cannot render these messages, or one holds a lone surrogate.
        """
        options = {} if enable_thinking is None else {"enable_thinking": enable_thinking}
        marked, marks = self._mark([_normal(message) for message in messages])
        text = self._render(marked, add_generation_prompt=add_generation_prompt, **options)
        try:
            return self._tokenizer.encode_parts(self._split(text, marks))
        except InvalidValue as error:
            raise InvalidValue(error.message, param="messages") from None

    def _mark(self, messages: list[dict[str, object]]) -> tuple[list[dict[str, object]], str]:
        """Put spelled special tokens between two marks; return them too ("" where nothing was spelled)."""
        special = self._special
        if special is None or not any(special.search(text) for text in _strings(messages)):
            return messages, ""
        used: set[str] = set().union(*_strings(messages))
        marks = "".join(islice((char for char in map(chr, chain(*_PRIVATE_USE)) if char not in used), 2))
        if len(marks) < 2:
            raise InvalidValue("The messages use all private-use characters of Unicode.", param="messages")
        replacement = rf"{marks[0]}\g<0>{marks[1]}"
        return [_map_strings(message, lambda text: special.sub(replacement, text)) for message in messages], marks

    def _render(self, messages: list[dict[str, object]], **options: object) -> str:
        max_chars = MAX_EXTRA_CHARS + MAX_EXPANSION * sum(map(len, _strings(messages)))
        chunks, num_chars = [], 0
        variables = {**self._tokenizer.named_tokens, "tools": None, "documents": None, **options}
        try:
            for chunk in self._template.generate(messages=messages, **variables):
                chunks.append(chunk)
                num_chars += len(chunk)
                if num_chars > max_chars:
                    raise TemplateError(f"more than {max_chars} characters")
        except TemplateError as error:
            problem = f"The model's chat template refuses these messages: {(error.message or '')[:MAX_REASON_CHARS]}"
        except Exception as error:  # a template can raise anything that Python can
            problem = f"The model's chat template cannot render these messages ({type(error).__name__})."
        else:
            return "".join(chunks)
        raise InvalidValue(problem, param="messages")

    def _split(self, text: str, marks: str) -> Iterator[Part]:
        """Cut a rendered text at the marks. A template may have cut one of a pair off: the other still counts."""
        if not marks:
            yield Part(text, False)
            return
        assert self._special is not None, "marks come from it"
        start, end, spelling = *marks, self._special.pattern
        position = 0
        for match in re.finditer(f"{start}({spelling}){end}?|({spelling}){end}|[{marks}]", text):
            yield Part(text[position : match.start()], False)
            yield Part(match[1] or match[2] or "", True)
            position = match.end()
        yield Part(text[position:], False)


class _GenerationTag(Extension):
    """`{% generation %}`: marks answers for training; here its body is rendered as it stands."""

    tags = {"generation"}  # noqa: RUF012  # jinja2 declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Return the statements between the tags."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    del environment.globals["lipsum"]
    environment.globals |= {
        "range": _range,
        "dict": _dict,
        "raise_exception": _raise_exception,
        "strftime_now": _strftime_now,
    }
    return environment


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # jinja2's own escapes HTML; prompts are none.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _range(*bounds: int) -> range:
    values = range(*bounds)
    if len(values) > MAX_RANGE:
        raise TemplateError(f"range() of more than {MAX_RANGE} numbers")
    return values


def _dict(*pairs: Any, **items: Any) -> dict[Any, Any]:
    return dict(*pairs, **items)


def _raise_exception(message: object) -> None:
    raise TemplateError(str(message))


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def _find_source(folder: Path) -> tuple[Path, str | None]:
    """Return the file that holds the model's own template, and the template."""
    file = folder / "chat_template.jinja"
    if file.exists():
        return file, _read(file)
    file = folder / "tokenizer_config.json"
    template = read_json(file).get("chat_template") if file.exists() else None
    if isinstance(template, list):
        named = [item for item in template if isinstance(item, dict) and item.get("name") == "default"]
        template = named[-1].get("template") if named else None
    return file, template if isinstance(template, str) else None


def _read(file: Path) -> str:
    if file.stat().st_size > MAX_TEMPLATE_BYTES:
        raise ValueError(f"{file} is larger than {MAX_TEMPLATE_BYTES} bytes")
    return file.read_text(encoding="utf-8")


def _any_of(spellings: Iterable[str]) -> re.Pattern[str] | None:
    words = [word for word in spellings if word]
    return re.compile(_trie(words)) if words else None


def _trie(words: list[str]) -> str:
    """Return a pattern for any of `words`, the longest that fits.

    It shares prefixes: a text full of `<|` would else try hundreds of reserved tokens at each.
    """
    prefix = words[0]
    while not all(word.startswith(prefix) for word in words):
        prefix = prefix[:-1]
    rests: dict[str, list[str]] = {}
    for word in words:
        if word != prefix:
            rests.setdefault(word[len(prefix)], []).append(word[len(prefix) :])
    if not rests:
        return re.escape(prefix)
    is_word = "?" if prefix in words else ""
    return f"{re.escape(prefix)}(?:{'|'.join(_trie(group) for group in rests.values())}){is_word}"


def _normal(message: dict[str, object]) -> dict[str, object]:
    """Drop fields that are None, as transformers does, and join text parts: most templates know only strings."""
    fields = {name: value for name, value in message.items() if value is not None}
    parts = fields.get("content")
    if isinstance(parts, list) and all(isinstance(part, dict) and part.get("type") == "text" for part in parts):
        fields["content"] = "\n".join(str(part.get("text", "")) for part in parts)
    return fields


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _strings(item)
    elif isinstance(value, dict):
        yield from _strings(list(value.values()))


def _map_strings(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, (list, tuple)):
        return [_map_strings(item, change) for item in value]
    if isinstance(value, dict):
        return {key: _map_strings(item, change) for key, item in value.items()}
    return value
