"""What limits the answer to one prompt: its grammar, and the marks of its reasoning."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from app.contract.errors import UnsupportedParameter
from app.contract.grammar import Grammar, ReasoningMarks
from app.contract.sampling_params import SamplingParams, check_with_grammar
from app.text.answer.reasoning_start import ReasoningStart


class AnswerRules(NamedTuple):
    """The grammar of an answer and the marks of its reasoning, as in `EngineRequest`."""

    grammar: Grammar | None
    reasoning: ReasoningMarks | None


def answer_rules(grammar: Grammar | None, params: SamplingParams, start: ReasoningStart | None) -> AnswerRules:
    """Return the rules of an answer; `start` says how its reasoning begins, None where it has none. Any thread.

    Where the model may reason first, the grammar begins after its reasoning, and up to two blanks or newlines. The
    reasoning is a part of the grammar where its marks are no single tokens.

    Raises:
        InvalidValue: parameters contradict the grammar.
        UnsupportedParameter: a budget for reasoning is set, and there are no marks, or no single tokens.
    """
    if grammar is not None:
        check_with_grammar(params)
    budget = params.thinking_token_budget
    if start is None and budget is not None:
        raise UnsupportedParameter(
            "thinking_token_budget needs a model that marks its reasoning in chats; leave it out.",
            param="thinking_token_budget",
        )
    if start is None or not start.is_possible:
        return AnswerRules(grammar, None)
    if start.marks is not None:
        return AnswerRules(None if grammar is None else replace(grammar, follows_reasoning=True), start.marks)
    if budget is not None:
        raise UnsupportedParameter(
            "thinking_token_budget needs a model whose reasoning stands between single tokens; the marks of this model "
            "have several. Leave it out, or let the model not reason, if its template can.",
            param="thinking_token_budget",
        )
    if grammar is None:
        return AnswerRules(None, None)
    return AnswerRules(replace(grammar, follows_reasoning=True, block=start.block), None)
