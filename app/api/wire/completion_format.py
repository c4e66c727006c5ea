"""The choices of completions, in chunks and in a JSON body."""

from __future__ import annotations

import codecs
from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any, Final

from app.api.wire.answers import ChunkChoice, CompletionAnswer, CompletionChoice, end_fields
from app.api.wire.api_request import ApiRequest
from app.api.wire.json_line import dump_line
from app.api.wire.shown_prompt import Echo
from app.contract.events import ChoiceEnd, TokenDelta
from app.contract.packed_logprobs import Logprobs, TokenLogprobs
from app.streaming.openai_shapes import finite, token_name
from app.text.tokens.detokenizer import incomplete_end


class CompletionFormat:
    """Implements `ChoiceFormat` for completions: each choice has what is shown of its prompt.

    Counts each choice's characters for the `text_offset` of log-probabilities. With an echo these have the tokens of
    the prompt first; without, an answer begins with the characters that its prompt leaves incomplete.
    """

    chunk_object: Final = "text_completion"
    has_prompt_in_choice = True
    reasoning_tokens = None

    def __init__(self, request: ApiRequest) -> None:
        self._request = request
        self._texts: defaultdict[int, list[str]] = defaultdict(list)
        self._echoes: dict[int, Echo] = {}  # of choices whose log-probabilities have not begun
        self._offsets: defaultdict[int, _Offsets] = defaultdict(_Offsets)
        if request.request.params.logprobs is not None:
            for choice in range(request.num_choices):
                self._begin(choice)

    def _begin(self, choice: int) -> None:
        echo = self._request.echo_of(choice)
        if echo is not None:
            self._echoes[choice], self._offsets[choice] = echo, _Offsets(echo.offset)
        else:
            ids = self._request.prompt_of(choice)[-3:]  # more than a character that is incomplete can have
            self._offsets[choice].take(incomplete_end(b"".join(map(self._request.token_bytes, ids))))

    def first(self, choice: int) -> ChunkChoice | None:
        """Return the prompt, if it is shown in front of the choice."""
        echo = self._request.echo_of(choice)
        return None if echo is None else self.choice(choice, echo.text)

    def choice(self, choice: int, part: str) -> ChunkChoice:
        return ChunkChoice(index=choice, text=part)

    def part(self, delta: TokenDelta) -> str:
        return delta.text

    def skip(self, delta: TokenDelta) -> None:
        """Take new tokens whose part nobody needs."""
        if delta.logprobs is not None:
            for token in delta.logprobs:
                self._offset(delta.choice, token.token_id)

    def rest(self, choice: int) -> str:
        """Return an empty text: nothing is held back until the end."""
        return ""

    def end(self, choice: int, end: ChoiceEnd) -> ChunkChoice:
        return ChunkChoice(index=choice, text="", **end_fields(end))

    def logprobs(self, choice: int, logprobs: Logprobs) -> dict[str, Any]:
        return {name: [value_of(token) for token in logprobs] for name, value_of in self._columns(choice).items()}

    def logprobs_pieces(self, choice: int, logprobs: Logprobs) -> Iterator[bytes]:
        echo = self._echoes.pop(choice, None)
        for index, (name, value_of) in enumerate(self._columns(choice).items()):
            yield (b"," if index else b"{") + b'"%b":[' % name.encode()
            first = [] if echo is None else [[self._first_value(name, choice, echo.first_token_id)]]
            lists = ([value_of(token) for token in piece] for piece in logprobs.pieces())
            for number, values in enumerate(chain(first, lists)):
                yield (b"," if number else b"") + dump_line(values)[1:-1]
            yield b"]"
        yield b"}"

    def keep(self, delta: TokenDelta) -> None:
        self._texts[delta.choice].append(delta.text)

    def whole(self, choice: int, end: ChoiceEnd, **fields: Any) -> CompletionChoice:
        echo = self._request.echo_of(choice)
        text = ("" if echo is None else echo.text) + "".join(self._texts[choice])
        return CompletionChoice(index=choice, text=text, **fields, **end_fields(end))

    def body(self, choices: list[Any], **fields: Any) -> CompletionAnswer:
        return CompletionAnswer(object="text_completion", choices=choices, **fields)

    def _first_value(self, name: str, choice: int, token_id: int) -> str | int | None:
        """Return the value of the first token of an echoed prompt in one of the four lists."""
        if name == "tokens":
            return self._name(token_id)
        return self._offset(choice, token_id) if name == "text_offset" else None

    def _columns(self, choice: int) -> dict[str, Callable[[TokenLogprobs], Any]]:
        """Return the names of the four lists, and the functions that return their values for a token."""
        return {
            "tokens": lambda token: self._name(token.token_id),
            "token_logprobs": lambda token: finite(token.logprob),
            "top_logprobs": self._best_by_name,
            "text_offset": lambda token: self._offset(choice, token.token_id),
        }

    def _name(self, token_id: int) -> str:
        return token_name(self._request.token_bytes(token_id))

    def _best_by_name(self, token: TokenLogprobs) -> dict[str, float]:
        """Names are not unique: the best token of a name counts, but the sampled token always does."""
        by_name: dict[str, float] = {}
        for token_id, logprob in zip(token.top_token_ids, token.top_logprobs, strict=True):
            by_name.setdefault(self._name(token_id), finite(logprob))
        by_name[self._name(token.token_id)] = finite(token.logprob)
        return by_name

    def _offset(self, choice: int, token_id: int) -> int:
        """Return the offset of the next token of the choice in its text."""
        return self._offsets[choice].take(self._request.token_bytes(token_id))


class _Offsets:
    """Where the tokens of a choice begin in its text: a character of several tokens begins with all of them."""

    def __init__(self, first: int = 0) -> None:
        self._next = first
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def take(self, token: bytes) -> int:
        """Return the offset of the next token; 0 for those before the text."""
        offset = self._next
        self._next += len(self._decoder.decode(token))
        return max(0, offset)
