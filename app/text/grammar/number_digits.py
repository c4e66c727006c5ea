"""Ends the numbers of JSON: the grammar library knows no longest one, and a model may write digits up to its limit.

Behind `MAX_DIGITS` digits in a row no further one may come, if the number may end there: so what a schema needs stays
possible, such as a `const` of 30 digits. A number is told from a string by what the grammar allows behind its digits:
no quotation mark, and no letter but that of an exponent. Before there are so many digits nothing of this is looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

MAX_DIGITS = 20
"""The digits before the point of a number, and behind it."""
MAX_EXPONENT_DIGITS = 3
_DIGITS = b"0123456789"
_TEXT = frozenset(b"\"'ABCDFGHIJKLMNOPQRSTUVWXYZabcdfghijklmnopqrstuvwxyz")
_KEPT_BYTES = MAX_DIGITS + 2  # with the letter and the sign of an exponent before the last digits


class NumberDigits:
    """The digits of the tokens of a vocabulary. Any thread."""

    def __init__(self, tokens: Sequence[bytes]) -> None:
        self._tokens = tokens
        self._leading = {
            token_id: len(token) - len(token.lstrip(_DIGITS))
            for token_id, token in enumerate(tokens)
            if token[:1].isdigit()
        }
        self._longest = max(self._leading.values(), default=0)
        self._longer = [
            _bits(token_id for token_id, leading in self._leading.items() if leading > count)
            for count in range(self._longest)
        ]
        self._text = _bits(token_id for token_id, token in enumerate(tokens) if token and token[0] in _TEXT)

    def behind(self, end: bytes, token_id: int) -> bytes:
        """Return the end of a text behind one more token."""
        return (end + self._tokens[token_id])[-_KEPT_BYTES:]

    def limit(self, mask: memoryview, end: bytes) -> None:
        """Take the digits out of the mask of what may follow `end` that a number must not have any more."""
        num_left = _num_left(end)
        if num_left >= self._longest:
            return
        allowed = int.from_bytes(mask, "little")
        if allowed & self._text or not allowed & ~self._longer[0]:
            return
        mask[:] = memoryview((allowed & ~self._longer[max(num_left, 0)]).to_bytes(mask.nbytes, "little")).cast("I")


def _num_left(end: bytes) -> int:
    """Return how many digits may follow the end of a text, if it is one of a number."""
    before = end.rstrip(_DIGITS)
    letter = before[-2:-1] if before[-1:] in (b"+", b"-") else before[-1:]
    return (MAX_EXPONENT_DIGITS if letter in (b"e", b"E") else MAX_DIGITS) - (len(end) - len(before))


def _bits(token_ids: Iterable[int]) -> int:
    """Return a number with a bit for each of some tokens."""
    bits = bytearray()
    for token_id in token_ids:
        if token_id >> 3 >= len(bits):
            bits.extend(bytes((token_id >> 3) + 1 - len(bits)))
        bits[token_id >> 3] |= 1 << (token_id & 7)
    return int.from_bytes(bits, "little")
