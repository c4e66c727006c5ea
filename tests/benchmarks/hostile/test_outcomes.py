"""What became of grammars: counted by limit, and by reason without what differs from one to the next."""

from __future__ import annotations

import pytest

from app.engine.execute.remote_sequences import TOO_COSTLY, TOO_LARGE
from app.text.grammar.children.trial import NO_MEMORY, GrammarLimits
from app.text.grammar.compile import error_of
from app.text.grammar.grammar_sizes import MAX_BYTES
from benchmarks.hostile.outcomes import NUM_REASONS, Outcomes, outcomes

LIMITS = GrammarLimits()


def test_accepted_grammars_and_reasons_are_counted():
    errors = [
        "",
        "regex is rejected: No text satisfies it.",
        'grammar is rejected: At 3(14): unknown name: "T5".',
        "grammar is rejected: At 12(1): unknown name: 'r9'.",
    ]
    reasons = {"unknown name: X.": 2, "No text satisfies it.": 1}
    found = outcomes(errors)
    assert found == Outcomes(1, {}, 3, reasons) and list(found.reasons) == list(reasons)
    assert str(found) == "1 accepted, 0 at a limit, 3 rejected"


def test_only_the_commonest_reasons_are_named():
    found = outcomes([letter for place, letter in enumerate("abcdefgh") for _ in range(place + 1)])
    assert found.num_rejected == 36 and list(found.reasons) == list("hgfedcba")[:NUM_REASONS]


@pytest.mark.parametrize(
    "limit",
    [
        LIMITS.reached(-27, is_late=False),
        LIMITS.reached(NO_MEMORY, is_late=False),
        LIMITS.reached(0, is_late=False, num_bytes=MAX_BYTES + 1),
        LIMITS.reached(0, is_late=True),
        TOO_COSTLY,
        TOO_LARGE,
    ],
)
def test_what_the_server_says_of_a_limit_is_one(limit: str):
    assert outcomes([f"regex is rejected: {limit} Send a simpler one."]).num_rejected == 0
    assert outcomes([limit]).limits == {limit.rstrip("."): 1}


@pytest.mark.parametrize("error", ["ParserTooComplex", "LexerTooComplex", "Grammar size (number of symbols) too big"])
def test_what_the_server_says_of_a_limit_of_the_library_is_one(error: str):
    class Matcher:
        def get_error(self) -> str:
            return error

    assert sum(outcomes([error_of(Matcher())]).limits.values()) == 1
