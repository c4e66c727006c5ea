"""Text that a user types: it must be Unicode, and bytes that are no UTF-8 are told in one sentence."""

from __future__ import annotations

import io
import sys

from app.contract.errors import ConfigurationError

MAX_SHOWN_CHARS = 40


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
        code = ord(text[error.start])
        wrong = f"the byte 0x{code - 0xDC00:02x}" if 0xDC80 <= code <= 0xDCFF else f"the surrogate U+{code:04X}"
        raise ConfigurationError(
            f"{source} is not UTF-8: it has {wrong}{after}; convert it, for example with `iconv -f latin1 -t utf-8`"
        ) from None
    return text


def keep_invalid_bytes() -> None:
    """Let standard input be read whatever its bytes are, so that `as_unicode` can say which is wrong."""
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")
