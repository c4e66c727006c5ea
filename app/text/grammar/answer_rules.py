"""What limits the answer to one prompt: its grammar, and the marks of its reasoning."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from app.contract.errors import UnsupportedParameter
from app.contract.grammar import Grammar, ReasoningMarks
from app.contract.sampling_params import SamplingParams, check_with_grammar
from app.text.reasoning_marks import ReasoningStart


class AnswerRules(NamedTuple):
    """The grammar of an answer and the marks of its reasoning, as in `EngineRequest`."""

    grammar: Grammar | None
    reasoning: ReasoningMarks | None


def answer_rules(grammar: Grammar | None, params: SamplingParams, start: ReasoningStart | None) -> AnswerRules:
    """Return the rules of an answer; `start` says how its reasoning begins, None where it has none. Any thread.

    Where the model may reason first, the grammar begins after its reasoning, and up to two blanks or newlines.

    Raises:
        InvalidValue: parameters contradict the grammar.
        UnsupportedParameter: a grammar or a budget for reasoning is set, and the marks are no single tokens.
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
    for name, is_set in (("thinking_token_budget", budget is not None), ("structured_outputs", grammar is not None)):
        if is_set:
            raise UnsupportedParameter(
                f"{name} cannot be combined with this model's reasoning, because its marks are no single tokens; "
                "leave it out, or send chat_template_kwargs with enable_thinking: false.",
                param=name,
            )
    return AnswerRules(None, None)
