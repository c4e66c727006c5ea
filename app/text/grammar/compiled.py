"""A compiled grammar, and what a limit of its lexer means for the sequences that share it.

The library's copies of a matcher share a lexer, which keeps the states that it has found, up to a limit, and has a
limit of work for each step. Once it comes to one, it is *spent*: no copy can go on, whoever has filled it, and some of
what it says is wrong without an error. What becomes of a sequence must not depend on others, so each one that uses a
spent lexer begins again, with its tokens, on the same grammar compiled anew. It fails only where it spends such a lexer
alone, by its tokens and the next mask, or MAX_ROUNDS of them without getting on:

    a matcher is in error ──its lexer is in order──────────────────────────────▶ the sequence fails
        └──spent──▶ begins again on a new lexer ──error, nobody else used it──▶ the sequence fails
                          ▲      └──error, others used it, too──┐     and so it does after MAX_ROUNDS of these
                          └─────────────────────────────────────┘
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.contract.grammar import Grammar
from app.text.grammar.compile import AGAIN_FUEL, STEP_FUEL, compile_grammar, error_of
from app.text.grammar.vocabulary import GrammarVocabulary

if TYPE_CHECKING:
    from llguidance import LLMatcher

SPENT = "lexer error"
"""What the library's error begins with where a lexer is spent."""
MAX_AGAIN = 16
"""The most sequences that begin again with one lexer: with more it is soon spent again, with fewer there are more of
them, of 20 MB and more each."""
MAX_ROUNDS = 8
"""The most lexers that one sequence spends at the same place. Two show whose fault it is if it then has its own, which
few can have at a time; that somebody else had filled so many just before is next to impossible."""
_ANY_TOKEN = 0


class CompiledGrammar:
    """A compiled grammar, whose matchers share its lexer. One thread at a time, with its matchers.

    Attributes:
        is_spent: whether a matcher has met the end of the lexer, which is of no use to any from then on.
        num_again: how many sequences have begun again with it.
    """

    def __init__(self, prototype: LLMatcher, *, is_again: bool = False) -> None:
        self.is_spent = False
        self.num_again = 0
        self._prototype: LLMatcher | None = prototype
        self._is_again = is_again
        self._num_matchers = 0

    @classmethod
    def compile(cls, grammar: Grammar, vocabulary: GrammarVocabulary, *, is_again: bool = False) -> CompiledGrammar:
        """Compile a grammar, `is_again` for sequences that begin again. Any thread.

        Raises:
            InvalidValue: see `compile_grammar`.
        """
        return cls(compile_grammar(grammar, vocabulary, AGAIN_FUEL if is_again else STEP_FUEL), is_again=is_again)

    def matcher(self) -> LLMatcher:
        """Return a matcher at the beginning; not of a spent one."""
        assert self._prototype is not None
        self._num_matchers += 1
        return self._prototype.deep_copy()

    def failure_of(self, matcher: LLMatcher, *, is_new: bool, num_rounds: int = 0) -> str | None:
        """Return why one of its matchers is in error; None if its sequence may begin again and go on.

        `is_new` says that the matcher has done nothing yet but to take its tokens, and one thing more. `num_rounds` are
        the lexers that its sequence has spent before at this place.
        """
        self._look()
        is_alone = self._is_again and is_new and self._num_matchers == 1
        if self.is_spent and not is_alone and num_rounds < MAX_ROUNDS - 1:
            return None
        return error_of(matcher)

    def _look(self) -> None:
        """Find out whether the lexer is spent: before it takes a token a copy says so, whatever the token is."""
        if self._prototype is None:
            return
        copy = self._prototype.deep_copy()
        copy.consume_token(_ANY_TOKEN)
        if copy.get_error().startswith(SPENT):
            self.is_spent, self._prototype = True, None
