"""The texts of special tokens in messages and tools: marked before a template is rendered, encoded as text afterwards.

Such a text is put between two private-use characters that no message contains. In the rendered prompt, the text between
them is literal; special tokens elsewhere come from the template. A long text is searched in chunks, because one call
would block all other threads.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from io import StringIO
from itertools import chain, islice
from typing import Any, TypeVar

from app.contract.admission import too_long
from app.contract.errors import InvalidValue
from app.text.tokens.tokenizer import Part, Tokenizer

SEARCH_CHARS = 2**16
Value = TypeVar("Value")
_PRIVATE_USE = (range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE))


class SpelledTokens:
    """Finds the texts of one model's special tokens in messages. Any thread."""

    def __init__(self, spellings: Iterable[str]) -> None:
        words = [word for word in spellings if word]
        self._pattern = re.compile(_trie(words)) if words else None
        self._longest = max(map(len, words), default=0)

    def mark(self, values: Value, *, max_tokens: int | None = None) -> tuple[Value, str]:
        """Put the texts of special tokens between two marks; return the values and the marks ("" if there are none).

        Values are messages, definitions of tools and the like; keys of objects are marked, too.

        Raises:
            InvalidValue: the messages use all characters that could be marks.
            ContextLengthExceeded: there are more than `max_tokens` such texts, each of which is at least one token.
        """
        pattern, longest = self._pattern, self._longest
        if pattern is None or not any(any(_matches(pattern, text, longest)) for text in strings(values)):
            return values, ""
        marks = unused_characters(strings(values), 2)
        start, end = tuple(marks)
        num_marked = 0

        def put_marks(text: str) -> str:
            nonlocal num_marked
            marked = StringIO()  # a list of the parts would take 200 bytes for each text that is found
            position = 0
            for match in _matches(pattern, text, longest):
                marked.write(f"{text[position : match.start()]}{start}{match[0]}{end}")
                position = match.end()
                num_marked += 1
                if max_tokens is not None and num_marked > max_tokens:
                    raise too_long(max_tokens, f"The prompt has more than {max_tokens} tokens")
            marked.write(text[position:])
            return marked.getvalue()

        marked: Value = _map_strings(values, put_marks)
        return marked, marks

    def split(self, text: str, marks: str) -> Iterator[Part]:
        """Split a rendered text at the marks. If a template has removed one mark of a pair, the other is sufficient."""
        if not marks:
            yield Part(text, False)
            return
        assert self._pattern is not None, "marks exist only with a pattern"
        start, end, spelling = *marks, self._pattern.pattern
        pattern = re.compile(f"{start}({spelling}){end}?|({spelling}){end}|[{marks}]")
        position = 0
        for match in _matches(pattern, text, self._longest + len(marks)):
            yield Part(text[position : match.start()], False)
            yield Part(match[1] or match[2] or "", True)
            position = match.end()
        yield Part(text[position:], False)


def encode_as_text(
    tokenizer: Tokenizer, text: str, *, add_special_tokens: bool, max_tokens: int | None = None
) -> list[int]:
    """Return the ids of `text` with the texts of special tokens in it encoded as text; see `Tokenizer.encode`.

    Raises:
        InvalidValue, ContextLengthExceeded: see `Tokenizer.encode_parts`.
    """
    spelled = SpelledTokens(tokenizer.special_tokens)
    (marked,), marks = spelled.mark([{"text": text}], max_tokens=max_tokens)
    token_ids = tokenizer.encode_parts(spelled.split(str(marked["text"]), marks), max_tokens=max_tokens)
    if not add_special_tokens:
        return token_ids
    plain, around = (tokenizer.encode("a", add_special_tokens=is_added) for is_added in (False, True))
    start = next(start for start in range(len(around)) if around[start : start + len(plain)] == plain)
    return around[:start] + token_ids + around[start + len(plain) :]


def strings(value: object) -> Iterator[str]:
    """Yield every string in a value of dicts and lists, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from strings(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from strings(key)
            yield from strings(item)


def _matches(pattern: re.Pattern[str], text: str, longest: int) -> Iterator[re.Match[str]]:
    """Yield the same matches as `pattern.finditer(text)`; no match has more than `longest` characters."""
    position = 0
    while position < len(text):
        stop = position + SEARCH_CHARS + longest
        last_start = len(text) if stop >= len(text) else stop - longest  # a later match may be truncated at the stop
        for match in pattern.finditer(text, position, stop):
            if match.start() > last_start:
                break
            yield match
            position = match.end()
        position = max(position, last_start + 1)


def unused_characters(texts: Iterable[str], count: int) -> str:
    """Return `count` private-use characters that are in none of `texts`.

    Raises:
        InvalidValue: the texts use too many of them.
    """
    used: set[str] = set()
    for text in texts:
        if not text.isascii():
            for start in range(0, len(text), SEARCH_CHARS):
                used.update(text[start : start + SEARCH_CHARS])
    marks = "".join(islice((char for char in map(chr, chain(*_PRIVATE_USE)) if char not in used), count))
    if len(marks) < count:
        raise InvalidValue("The messages use all private-use characters of Unicode; remove some.", param="messages")
    return marks


def _map_strings(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, (list, tuple)):
        return [_map_strings(item, change) for item in value]
    if isinstance(value, dict):
        return {_map_strings(key, change): _map_strings(item, change) for key, item in value.items()}
    return value


def _trie(words: list[str]) -> str:
    """Return a pattern for any of `words`, which prefers longer ones.

    The pattern shares prefixes. Otherwise each `<|` in a text would be compared with hundreds of reserved tokens.
    """
    prefix = words[0]
    while not all(word.startswith(prefix) for word in words):
        prefix = prefix[:-1]
    rests: dict[str, list[str]] = {}
    for word in words:
        if word != prefix:
            rests.setdefault(word[len(prefix)], []).append(word[len(prefix) :])
    if not rests:
        return re.escape(prefix)
    is_word = "?" if prefix in words else ""
    return f"{re.escape(prefix)}(?:{'|'.join(_trie(group) for group in rests.values())}){is_word}"
