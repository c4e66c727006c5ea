"""A compiled grammar, and what a limit of its lexer means for the sequences that share it.

The library's copies of a matcher share a lexer, which keeps the states that it has found, up to a limit. Once it is
there, it is *spent*: no copy can go on, whoever has filled it, and some of what it says is wrong without an error. What
becomes of a sequence must not depend on others, so each one that uses a spent lexer begins again, with its tokens, on
the same grammar compiled anew. It fails only where a lexer is spent by it alone, from its tokens and the next mask:

    a matcher is in error ──its lexer is in order──────────────────────────────▶ the sequence fails
        └──spent──▶ begins again on a new lexer ──error, nobody else used it──▶ the sequence fails
                          ▲      └──error, others used it, too──┐
                          └─────────────────────────────────────┘
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.text.grammar.compile import error_of

if TYPE_CHECKING:
    from llguidance import LLMatcher

SPENT = "lexer error"
"""What the library's error begins with where a lexer is spent."""
_ANY_TOKEN = 0


class CompiledGrammar:
    """A compiled grammar, whose matchers share its lexer. One thread at a time, with its matchers.

    Attributes:
        is_spent: whether a matcher has met the end of the lexer, which is of no use to any from then on.
    """

    def __init__(self, prototype: LLMatcher) -> None:
        self.is_spent = False
        self._prototype: LLMatcher | None = prototype
        self._num_matchers = 0

    def matcher(self) -> LLMatcher:
        """Return a matcher at the beginning; not of a spent one."""
        assert self._prototype is not None
        self._num_matchers += 1
        return self._prototype.deep_copy()

    def failure_of(self, matcher: LLMatcher, *, is_new: bool) -> str | None:
        """Return why one of its matchers is in error; None if its sequence may begin again and go on.

        `is_new` says that the matcher has done nothing yet but to take its tokens, and one thing more.
        """
        self._look()
        if self.is_spent and not (is_new and self._num_matchers == 1):
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
