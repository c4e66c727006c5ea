"""The text is long enough, and windows are complete."""

from __future__ import annotations

import pytest

from app.checkpoint.text_files import FolderText
from app.contract.errors import ConfigurationError
from app.text.tokens.tokenizer import Tokenizer
from benchmarks.perplexity.scored_model import MAX_TOKENS
from benchmarks.perplexity.text import FILE, NUM_WINDOWS, windows
from tests.checkpoints import tiny


def test_windows_are_complete_and_follow_one_another(tmp_path):
    tokenizer, file = Tokenizer.load(FolderText(tiny())), tmp_path / "text.md"
    file.write_text("abc " * 2 * MAX_TOKENS)
    found = windows(tokenizer, 3, file)
    token_ids = tokenizer.encode(file.read_text(), add_special_tokens=False)
    assert [len(window) for window in found] == [MAX_TOKENS] * 3
    assert [token_id for window in found for token_id in window] == token_ids[: 3 * MAX_TOKENS]


@pytest.mark.parametrize("num_windows", [0, -1, 3])
def test_a_number_of_windows_that_the_text_does_not_have_is_rejected(num_windows, tmp_path):
    file = tmp_path / "text.md"
    file.write_text("\n" * (3 * MAX_TOKENS - 1))
    with pytest.raises(ConfigurationError, match=rf"--windows is {num_windows}; text.md has 2, give 1 to 2."):
        windows(Tokenizer.load(FolderText(tiny())), num_windows, file)


def test_the_text_has_at_least_4000_tokens_for_any_tokenizer():
    assert NUM_WINDOWS * MAX_TOKENS >= 4000
    assert len(FILE.read_text(encoding="utf-8").split()) >= NUM_WINDOWS * MAX_TOKENS
