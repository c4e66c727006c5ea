"""Text that a user types or has in a file: it must be Unicode, and bytes that are no UTF-8 are told in one sentence."""

from __future__ import annotations

import io
import sys
from pathlib import Path

from app.contract.errors import ConfigurationError

MAX_SHOWN_CHARS = 40
_ADVICE = "convert it, for example with `iconv -f latin1 -t utf-8`"


def as_unicode(text: str, source: str) -> str:
    """Return `text` if it is valid Unicode; `source` names it in the message.

    Raises:
        ConfigurationError: it has bytes that are no UTF-8 (Python reads them as lone surrogates).
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        before = text[max(0, error.start - MAX_SHOWN_CHARS) : error.start]
        after = f" after {before.splitlines()[-1]!r}" if before.strip() else ""
        wrong = _named(text[error.start])
        raise ConfigurationError(f"{source} is not UTF-8: it has {wrong}{after}; {_ADVICE}") from None
    return text


def read_unicode(file: Path) -> str:
    """Return the text of a file.

    Raises:
        OSError: it cannot be read.
        ValueError: it has bytes that are no UTF-8. The message says where; it shows no text, which may be a key.
    """
    text = file.read_text(encoding="utf-8", errors="surrogateescape")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        *lines, last = text[: error.start].split("\n")
        place = f"at line {len(lines) + 1}, column {len(last) + 1}"
        raise ValueError(f"{file} is not UTF-8: it has {_named(text[error.start])} {place}; {_ADVICE}") from None
    return text


def keep_invalid_bytes() -> None:
    """Let standard input be read whatever its bytes are, so that `as_unicode` can say which is wrong."""
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")


def _named(char: str) -> str:
    """Return the words for a lone surrogate, which mostly stands for a byte."""
    code = ord(char)
    return f"the byte 0x{code - 0xDC00:02x}" if 0xDC80 <= code <= 0xDCFF else f"the surrogate U+{code:04X}"
