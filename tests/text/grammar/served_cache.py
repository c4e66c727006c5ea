"""A cache of grammars as a server has it: other processes compile them and find their masks."""

from __future__ import annotations

from app.contract.grammar import Grammar
from app.text.grammar.cache import GrammarCache
from app.text.grammar.children.fork_client import ForkClient
from app.text.grammar.grammar_entries import Lease
from app.text.tokens.tokenizer import Tokenizer

_children: dict[bytes, ForkClient] = {}
"""Each takes a second to start, so all tests with the same vocabulary share one; it ends with this process."""


class ServedCache(GrammarCache):
    """Leases grammars without a trial: those of tests are known."""

    def __init__(self, *, is_shared: bool = True) -> None:
        super().__init__(is_served=True)
        self._is_shared = is_shared

    def load(self, tokenizer: Tokenizer, vocab_size: int, eos_token_ids: tuple[int, ...]) -> str | None:
        reason = super().load(tokenizer, vocab_size, eos_token_ids)
        if self.children is not None and self._is_shared:
            self.children = _children.setdefault(b"".join(self.children.greeting()), self.children)
        return reason

    def lease(self, grammar: Grammar, account: str = "") -> Lease:
        if self.children is None:
            return super().lease(grammar, account)
        self.children.start()
        return self.lease_decided(grammar, account) or self.accept(grammar, grammar, account)

    def close(self) -> None:
        """End the process that finds masks; the one that forks may be needed by other tests."""
        if self._is_shared and self.workers is not None:
            self.workers.close()
        elif not self._is_shared:
            super().close()
