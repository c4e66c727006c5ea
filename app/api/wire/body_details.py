"""What a JSON body has besides its texts, until all choices have ended."""

from __future__ import annotations

from array import array
from collections import defaultdict

from app.api.wire.api_request import ApiRequest
from app.contract.events import PromptScored, TokenDelta
from app.contract.packed_logprobs import Logprobs


class BodyDetails:
    """The packed log-probabilities, the token ids and the scores of prompts that an answer has. One owner."""

    def __init__(self, request: ApiRequest) -> None:
        self._request = request
        self._num_top = 0
        self._rows: defaultdict[int, bytearray] = defaultdict(bytearray)  # of the choices
        self._token_ids: defaultdict[int, array[int]] = defaultdict(lambda: array("i"))
        self._scores: dict[int, Logprobs] = {}  # of the prompts, by their first choice

    def add(self, event: TokenDelta | PromptScored) -> None:
        """Keep what a response has of an event besides its text."""
        if isinstance(event, PromptScored):
            self._scores[event.choice] = event.logprobs
            return
        if self._request.has_token_ids:
            self._token_ids[event.choice].extend(event.token_ids)
        if event.logprobs is not None:
            self._num_top = event.logprobs.num_top
            self._rows[event.choice] += event.logprobs.rows

    def token_ids(self, choice: int) -> array[int]:
        """Return the token ids of a choice."""
        return self._token_ids[choice]

    def logprobs(self, choice: int) -> Logprobs:
        """Return the log-probabilities of a choice: those of its generated tokens, after those of an echoed prompt."""
        if not self._request.shown.echoes:
            return Logprobs(self._num_top, bytes(self._rows[choice]))
        scores = self.scores(choice)
        return Logprobs(scores.num_top if scores.rows else self._num_top, scores.rows + self._rows[choice])

    def scores(self, choice: int) -> Logprobs:
        """Return the log-probabilities of the prompt of a choice; none if it was cancelled before it had any."""
        return self._scores.get(self._request.first_of_prompt(choice), Logprobs(0))

    @property
    def num_bytes(self) -> int | None:
        """The memory of all that; None if the response has none of it."""
        request = self._request
        if request.request.params.logprobs is None and not request.has_token_ids and not request.shown.has_logprobs:
            return None
        scores = sum(len(one.rows) for one in self._scores.values())
        if request.shown.echoes:  # they are part of the log-probabilities of each choice as well
            scores *= 1 + request.request.params.n
        num_ids = sum(map(len, self._token_ids.values()))
        return scores + sum(map(len, self._rows.values())) + array("i").itemsize * num_ids
