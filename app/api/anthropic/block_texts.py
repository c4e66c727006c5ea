"""Texts in place of blocks that are more than text, for models that read text alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.api.anthropic.message_fields import (
    DocumentBlock,
    ImageBlock,
    ResultBlock,
    SearchResultBlock,
    TextBlock,
    ToolResultBlock,
)

BILLING_LINE = "x-anthropic-billing-header:"
"""How a line begins that Claude Code puts into its system prompt, another one in each conversation."""
LEFT_OUT = "[{} left out: this model reads text]"
ERROR = "Error:"


def without_billing_line(text: str) -> str:
    """Return a text of a system prompt without its billing lines. Any thread."""
    if BILLING_LINE not in text:
        return text
    return "\n".join([line for line in text.split("\n") if not line.startswith(BILLING_LINE)])


def document_text(document: DocumentBlock) -> str | None:
    """Return the text of a document; None if it is anything else, such as a PDF. Any thread."""
    source = document.source
    kind, content = source.get("type"), source.get("content")
    if kind == "text":
        return source["data"] if isinstance(source.get("data"), str) else None
    if kind != "content" or isinstance(content, str):
        return content if kind == "content" else None
    parts = [part.get("text") if isinstance(part, dict) else None for part in content or ()]
    texts = [part for part in parts if isinstance(part, str)]
    return "\n".join(texts) if len(texts) == len(parts) else None


def search_text(result: SearchResultBlock) -> str:
    """Return the text of a search result. Any thread."""
    return "\n".join([block.text for block in result.content])


def result_text(result: ToolResultBlock, definitions: Mapping[str, Any]) -> str:
    """Return the text of a call's result; `definitions` are the JSON of the tools by name. Any thread.

    An agent repeats a call whose result is refused, so that what no model here reads is only named.
    """
    content = result.content
    text = content if isinstance(content, str) else "\n".join([_part(part, definitions) for part in content or ()])
    return f"{ERROR} {text}" if result.is_error and not text.startswith(ERROR) else text


def _part(part: ResultBlock, definitions: Mapping[str, Any]) -> str:
    match part:
        case TextBlock():
            return part.text
        case SearchResultBlock():
            return search_text(part)
        case ImageBlock():
            return LEFT_OUT.format("image")
        case DocumentBlock():
            text = document_text(part)
            return LEFT_OUT.format("document") if text is None else text
    return str(definitions.get(part.tool_name, part.tool_name))
