"""How an answer's reasoning begins, by the style of the model and the end of the prompt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from app.contract.grammar import ReasoningMarks
from app.text.answer.reasoning import ReasoningStyle
from app.text.answer.reasoning_rules import block_rules
from app.text.tokens.tokenizer import Tokenizer

PROMPT_END_TOKENS = 24  # enough for a mark and the blanks behind it


class ReasoningStart(NamedTuple):
    """How the reasoning of an answer to one prompt begins.

    Attributes:
        is_possible: whether the answer may reason: not where the prompt ends in a closing mark or asks for none.
        is_inside: whether the prompt has begun the reasoning.
        marks: the tokens around it; None if one of the marks is not a single token.
        block: the rules of the grammar of reasoning, where there are no such tokens (see `Grammar.block`).
    """

    is_possible: bool
    is_inside: bool
    marks: ReasoningMarks | None
    block: str = ""


def reasoning_start(
    style: ReasoningStyle | None,
    prompt_token_ids: Sequence[int],
    tokenizer: Tokenizer,
    continued: str | None = None,
    *,
    is_asked_for: bool = True,
) -> ReasoningStart | None:
    """Return how an answer to this prompt begins its reasoning; None without a style. Any thread.

    `continued` is the text of the message that the answer continues, None if it begins one: the message may have begun
    its reasoning, or ended it. Without `is_asked_for` the template has asked for no reasoning.
    """
    if style is None:
        return None
    end = tokenizer.decode(prompt_token_ids[-PROMPT_END_TOKENS:], skip_special_tokens=False)
    has_begun = continued is not None and style.begins(continued)
    has_ended = end.rstrip().endswith(style.close) or (has_begun and style.close in (continued or ""))
    is_inside = not has_ended and (has_begun or style.is_inside(end))
    open_id, close_id = map(tokenizer.token_id, style.marks)
    is_possible = is_inside or (is_asked_for and not has_ended)
    if open_id is not None and close_id is not None:
        return ReasoningStart(is_possible, is_inside, ReasoningMarks(open_id, close_id, is_inside))
    block = block_rules(style, tokenizer.special_tokens, is_inside=is_inside)
    return ReasoningStart(is_possible, is_inside, None, block)
