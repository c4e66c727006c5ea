"""A choice that is generated again after a restart, since the tokens that were told are the same ones again.

Answers depend on nothing but their request, so what is told behind the last token of the earlier process is what that
process would have told. It is checked, token by token.
"""

from __future__ import annotations

from app.contract.events import Finished, TokenDelta
from app.contract.packed_logprobs import Logprobs


class Diverged(Exception):
    """The tokens are other ones than those that were told."""


class Regeneration:
    """Passes on what was not told yet of a choice; `told` is what was, in one delta."""

    def __init__(self, told: TokenDelta) -> None:
        self._told = told
        self._num_tokens = 0
        self._text = ""
        self._rows = bytearray()
        self._is_done = False

    def rest(self, event: TokenDelta | Finished) -> TokenDelta | Finished | None:
        """Return the new part of the choice's next event; None if nothing is new.

        Raises:
            Diverged: it is not what was told.
        """
        if self._is_done:
            return event
        if isinstance(event, Finished):
            raise Diverged
        told = self._told
        start = self._num_tokens
        self._num_tokens += len(event.token_ids)
        self._text += event.text
        self._rows += b"" if event.logprobs is None else event.logprobs.rows
        again = told.token_ids[start : self._num_tokens]
        if event.token_ids[: len(again)] != again:
            raise Diverged
        if self._num_tokens < len(told.token_ids):
            return None
        self._is_done = True
        if not self._text.startswith(told.text):
            raise Diverged
        token_ids, text = event.token_ids[len(again) :], self._text.removeprefix(told.text)
        logprobs = None
        if event.logprobs is not None:
            num_told = 0 if told.logprobs is None else len(told.logprobs.rows)
            logprobs = Logprobs(event.logprobs.num_top, bytes(self._rows[num_told:]))
        self._text, self._rows = "", bytearray()
        if not token_ids:
            if text:
                raise Diverged
            return None
        return TokenDelta(event.request_id, event.choice, len(told.token_ids) + 1, token_ids, text, logprobs)
