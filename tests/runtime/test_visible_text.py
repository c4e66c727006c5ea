"""Control characters of others reach no terminal."""

import pytest

from app.runtime.visible_text import visible


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2J", r"\x1b[2J"), ("\x9b31m", r"\x9b31m"), ("a\x07\x00\x7f", r"a\x07\x00\x7f"), ("a\r\nb", "a\nb"),
        ("\x1b]52;c;eA==\x07", r"\x1b]52;c;eA==\x07"), ("tab\tand\nline é 漢", "tab\tand\nline é 漢"),
    ],
)  # fmt: skip
def test_control_characters_are_written_out(text, shown):
    assert visible(text) == shown
    assert "".join(map(visible, text)) == shown, "pieces are as the whole"
