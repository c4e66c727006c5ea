"""Chat templates: turns messages into prompt token ids, with the model's Jinja template in a sandbox.

Special tokens written by the template become tokens; the same text inside a message stays text (see `spelled_tokens`).
Messages without the text of special tokens are encoded exactly as transformers does. A special token that the template
builds from a message (`'<|' + message.role + '|>'`) is not detected, so callers must only allow known roles.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jinja2 import TemplateError, TemplateSyntaxError

from app.checkpoint.text_files import Templates, TextFiles, read_template
from app.contract.errors import CannotStart, ConfigurationError, InvalidValue, ModelRefused
from app.text.template.message_form import MessageForm
from app.text.template.spelled_tokens import SpelledTokens, strings, unused_characters
from app.text.template.template_allowance import MAX_EXPANSION, MAX_EXTRA_CHARS, TemplateTooCostly, new_allowance
from app.text.template.template_sandbox import compile_template
from app.text.template.template_trial import Findings, Trial, is_bundled, trial_of
from app.text.template.turns import AS_GIVEN
from app.text.tokens.tokenizer import Part, Tokenizer

MAX_REASON_CHARS = 200


@dataclass(frozen=True, slots=True)
class RenderOptions:
    """How messages are rendered.

    `add_generation_prompt` begins an answer after the messages. `continue_final` ends the prompt within the last
    message instead, directly after its content. `variables` are passed to the template; the texts of special tokens in
    them are marked like those in messages. `tools` are checked definitions (see `tools`).
    """

    add_generation_prompt: bool = True
    continue_final: bool = False
    variables: Mapping[str, object] = field(default_factory=dict)
    tools: Sequence[Mapping[str, Any]] = ()


class ChatTemplate:
    """The compiled template of one model, and the one that it has for chats with tools, if any. Any thread.

    Attributes:
        tool_source: the source of the template for chats with tools.
        findings: what its trial has found; set by `load`.
    """

    def __init__(self, source: str, tokenizer: Tokenizer, tool_source: str | None = None) -> None:
        self._template = compile_template(source)
        self.tool_source = source if tool_source is None else tool_source
        self._tool_template = self._template if tool_source is None else compile_template(tool_source)
        self.findings, self._tool_turns = Findings(), AS_GIVEN
        self._form = MessageForm(self.tool_source)
        self._tokenizer = tokenizer
        self._spelled = SpelledTokens(tokenizer.special_tokens)

    @classmethod
    def load(cls, files: TextFiles, tokenizer: Tokenizer, override: Path | None = None) -> ChatTemplate | None:
        """Return the template in `override`, else the model's, else None. Blocks.

        Raises:
            ConfigurationError: `override` is missing, too large, or not a valid template.
            ModelRefused: the same for the model's template.
            CannotStart: this machine was too busy to try it.
        """
        try:
            file, text, tool_text = _find_templates(files, override)
        except (OSError, ValueError) as error:
            problem = f"The chat template cannot be read ({error})"
        else:
            if text is None:
                return None
            try:
                template = cls(text, tokenizer, tool_text)
                found = [trial.findings() for trial in _trials(file, text, tool_text)]
                reason = next((each.reason for each in found if each.reason is not None), None)
                if reason is None:
                    return template.taking(*found)
            except TemplateSyntaxError as error:
                reason = f"line {error.lineno}: {(error.message or '')[:MAX_REASON_CHARS]}"
            except CannotStart:
                raise
            except Exception as error:  # jinja2 compiles templates to Python, whose compiler has limits
                reason = f"{type(error).__name__}: it is nested too deeply"
            problem = f"{file} contains no usable chat template ({reason})"
        reject = ModelRefused if override is None else ConfigurationError
        param = "model" if override is None else "chat_template"
        raise reject(f"{problem}; set a working one with --chat-template FILE.", param=param)

    def taking(self, *found: Findings) -> ChatTemplate:
        """Return this template as a trial of it has found it, and perhaps one of that for chats with tools."""
        taking = copy(self)
        if found:
            taking.findings = found[0]._replace(takes_several_calls=found[-1].takes_several_calls)
            taking._tool_turns = found[-1].turns
        return taking

    def render(
        self, messages: list[dict[str, object]], options: RenderOptions | None = None, *, max_tokens: int | None = None
    ) -> list[int]:
        """Return the prompt's token ids; see `Tokenizer.encode` for `max_tokens`.

        Fields that are None are dropped; a list of text parts becomes one text, with a line per part. The
        arguments of calls are objects or their JSON; text that is neither is kept, too (see `tools.as_object`). A
        template that knows no tools gets tools, calls and results as text. What the template does not take is fitted to
        it (see `Turns.fit`).

        Raises:
            InvalidValue: the template rejects or cannot render these messages, or leaves out the one to continue, or
                one contains a lone surrogate.
            ContextLengthExceeded: the prompt has certainly more than `max_tokens` tokens.
        """
        parts = self._parts(messages, options or RenderOptions(), max_tokens)
        with _naming_messages():
            return self._tokenizer.encode_parts(parts, max_tokens=max_tokens)

    def count(self, messages: list[dict[str, object]], options: RenderOptions | None = None) -> int:
        """Return the number of the prompt's tokens, however many (see `Tokenizer.count_parts`).

        Raises:
            InvalidValue: see `render`.
        """
        parts = self._parts(messages, options or RenderOptions(), None)
        with _naming_messages():
            return self._tokenizer.count_parts(parts)

    def render_text(
        self, messages: list[dict[str, object]], options: RenderOptions | None = None, *, max_tokens: int | None = None
    ) -> str:
        """Return the text of the prompt, and raise the same errors as `render`.

        In this text, special tokens of the template and the same texts in messages look the same.
        """
        return "".join(part.text for part in self._parts(messages, options or RenderOptions(), max_tokens))

    def _parts(
        self, messages: list[dict[str, object]], options: RenderOptions, max_tokens: int | None
    ) -> Iterator[Part]:
        normal, tools = self._form.formed([*map(_normal, messages)], options.tools)
        fitted = (self.findings.turns if tools is None else self._tool_turns).fit(normal)
        given: list[dict[str, Any]] = [*fitted, {"tools": tools, **options.variables}]
        (*marked, variables), marks = self._spelled.mark(given, max_tokens=max_tokens)
        end = ""
        if options.continue_final:
            end = unused_characters(strings([*marked, variables]), 1)
            marked[-1] = marked[-1] | {"content": f"{marked[-1].get('content', '')}{end}"}
        # A client has chosen names among the variables, so they are never names of arguments in Python.
        variables = {**variables, "messages": marked, "add_generation_prompt": options.add_generation_prompt}
        text = self._render(variables)
        if end:
            text, found, _ = text.rpartition(end)
            if not found:
                problem = "The model's chat template leaves out the last message, so it cannot be continued."
                raise InvalidValue(problem, param="continue_final_message")
            text = text.replace(end, "")
        return self._spelled.split(text, marks)

    def _render(self, given: dict[str, Any]) -> str:
        num_given = sum(map(len, strings([given])))
        max_chars = MAX_EXTRA_CHARS + MAX_EXPANSION * num_given
        chunks, num_chars = [], 0
        variables = {**self._tokenizer.named_tokens, "documents": None, **given}
        template = self._template if variables["tools"] is None else self._tool_template
        try:
            with new_allowance(num_given):
                for chunk in template.generate(variables):
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


@contextmanager
def _naming_messages() -> Iterator[None]:
    """Say that it is the messages that cannot be encoded."""
    try:
        yield
    except InvalidValue as error:
        raise InvalidValue(error.message, param="messages") from None


@contextmanager
def trying_templates(files: TextFiles, override: Path | None = None) -> Iterator[None]:
    """Start the trials of the templates that `ChatTemplate.load` is to return in this block. Blocks for milliseconds.

    So the processes start while the tokenizer is made.
    """
    trials: list[Trial] = []
    with suppress(OSError, ValueError, ModelRefused, CannotStart):  # `load` reports them
        trials = _trials(*_find_templates(files, override))
        for trial in trials:
            trial.begin()
    try:
        yield
    finally:
        for trial in trials:
            trial.end()


def _trials(file: Path, text: str | None, tool_text: str | None) -> list[Trial]:
    """Return the trials of the templates in `file`; bundled ones need none."""
    return [] if is_bundled(file) else [trial_of(source) for source in (text, tool_text) if source]


def _find_templates(files: TextFiles, override: Path | None) -> Templates:
    """Return the template in `override`, else the model's; raises as `TextFiles.templates` does."""
    return files.templates if override is None else Templates(override, read_template(override))


def _normal(message: dict[str, object]) -> dict[str, object]:
    """Drop fields that are None, as transformers does, and join text parts: most templates expect strings."""
    fields = {name: value for name, value in message.items() if value is not None}
    parts = fields.get("content")
    if isinstance(parts, list) and all(isinstance(part, dict) and part.get("type") == "text" for part in parts):
        fields["content"] = "\n".join(str(part.get("text", "")) for part in parts)
    return fields
