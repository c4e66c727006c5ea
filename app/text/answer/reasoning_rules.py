"""Rules of grammars for reasoning between marks that are no single tokens: Lark text that is put before an answer's."""

from __future__ import annotations

from collections.abc import Mapping

from app.text.answer.reasoning import ReasoningStyle
from app.text.grammar.lark_text import ANYTHING, quoted


def block_rules(style: ReasoningStyle, special_tokens: Mapping[str, int], *, is_inside: bool) -> str:
    """Return the rule `block` and those that it needs, for a model with these special tokens and their ids.

    It is a block of reasoning or nothing; the rest of one if the prompt has begun it (`is_inside`).
    """
    opening, closing = (_mark(mark, special_tokens) for mark in style.marks)
    block = "inside" if is_inside else f"({opening} inside)?"
    if any(map(special_tokens.__contains__, _parts(style.close, special_tokens))):
        return f"block: {block}\ninside: /{ANYTHING}/ {closing}\n"
    return f"block: {block}\ninside[suffix={closing}]: /{ANYTHING}/\n"


def _mark(mark: str, special_tokens: Mapping[str, int]) -> str:
    """Return the rule of a mark: its special tokens, and the texts between them."""
    parts = _parts(mark, special_tokens)
    return " ".join(f"<[{special_tokens[part]}]>" if part in special_tokens else quoted(part) for part in parts)


def _parts(mark: str, special_tokens: Mapping[str, int]) -> list[str]:
    found = max((token for token in special_tokens if token in mark), key=len, default="")
    if not found:
        return [mark] if mark else []
    before, _, after = mark.partition(found)
    return [*_parts(before, special_tokens), found, *_parts(after, special_tokens)]
