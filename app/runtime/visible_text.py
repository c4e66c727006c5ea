"""Text that others have written, for a terminal: it must not move the cursor, change colours or set titles there."""

from __future__ import annotations

_KEPT = "\n\t"
_CONTROLS = [*range(0x20), *range(0x7F, 0xA0)]
_ESCAPES = {code: f"\\x{code:02x}" for code in _CONTROLS if chr(code) not in _KEPT} | {ord("\r"): None}


def visible(text: str) -> str:
    """Return `text` with control characters written out, such as `\\x1b`; line ends and tabs stay.

    A terminal obeys sequences of them: a model's answer, a name or a message of a server could overwrite what was shown
    before, or read the clipboard. Works on pieces of a text as on the whole. Any thread.
    """
    return text.translate(_ESCAPES)
