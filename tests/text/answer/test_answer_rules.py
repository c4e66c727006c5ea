"""What limits an answer, by how its reasoning begins."""

import pytest

from app.contract.errors import InvalidValue, UnsupportedParameter
from app.contract.grammar import Grammar, GrammarKind, ReasoningMarks
from app.contract.sampling_params import SamplingParams
from app.text.answer.answer_rules import AnswerRules, answer_rules
from app.text.answer.reasoning_start import ReasoningStart

WANTED = Grammar(GrammarKind.REGEX, "a+")
FOLLOWING = Grammar(GrammarKind.REGEX, "a+", follows_reasoning=True)
MARKS = ReasoningMarks(3, 4)
TOKENS = ReasoningStart(True, False, MARKS)
TEXTS = ReasoningStart(True, False, None, "block: \n")
NONE = ReasoningStart(False, False, None, "block: \n")


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        (None, AnswerRules(WANTED, None)),
        (TOKENS, AnswerRules(FOLLOWING, MARKS)),
        (TEXTS, AnswerRules(Grammar(GrammarKind.REGEX, "a+", follows_reasoning=True, block="block: \n"), None)),
        (NONE, AnswerRules(WANTED, None)),
    ],
    ids=["no style", "tokens", "texts", "none"],
)
def test_a_grammar_follows_the_reasoning_that_may_come(start: ReasoningStart | None, expected: AnswerRules):
    assert answer_rules(WANTED, SamplingParams(), start) == expected
    without = answer_rules(None, SamplingParams(), start)
    assert without == AnswerRules(None, MARKS if start is TOKENS else None)


def test_a_budget_needs_marks_that_are_tokens():
    budget = SamplingParams(thinking_token_budget=5)
    assert answer_rules(None, budget, TOKENS) == AnswerRules(None, MARKS)
    assert answer_rules(WANTED, budget, NONE) == AnswerRules(WANTED, None), "there is nothing to limit"
    for start, words in ((TEXTS, "between single tokens"), (None, "marks its reasoning")):
        with pytest.raises(UnsupportedParameter, match=words) as raised:
            answer_rules(WANTED, budget, start)
        assert raised.value.param == "thinking_token_budget"


@pytest.mark.parametrize("start", [None, TOKENS, TEXTS, NONE])
def test_parameters_that_contradict_a_grammar_are_rejected(start: ReasoningStart | None):
    with pytest.raises(InvalidValue, match="min_tokens"):
        answer_rules(WANTED, SamplingParams(min_tokens=1), start)
