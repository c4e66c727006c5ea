"""The text that models predict: prose, cut into windows.

It is the first half of a former page of the documentation, and a file of its own, so that figures of different days
compare.
"""

from __future__ import annotations

from pathlib import Path

from app.contract.errors import ConfigurationError
from app.text.tokens.tokenizer import Tokenizer
from benchmarks.perplexity.scored_model import MAX_TOKENS

FILE = Path(__file__).with_name("prose.txt")
NUM_WINDOWS = 9


def windows(tokenizer: Tokenizer, num_windows: int = NUM_WINDOWS, file: Path = FILE) -> list[list[int]]:
    """Return the first windows of MAX_TOKENS tokens of a text.

    Raises:
        ConfigurationError: the text has not so many.
    """
    token_ids = tokenizer.encode(file.read_text(encoding="utf-8"), add_special_tokens=False)
    starts = range(0, len(token_ids) - MAX_TOKENS + 1, MAX_TOKENS)
    if not 1 <= num_windows <= len(starts):
        raise ConfigurationError(f"--windows is {num_windows}; {file.name} has {len(starts)}, give 1 to {len(starts)}.")
    return [token_ids[start : start + MAX_TOKENS] for start in starts[:num_windows]]
