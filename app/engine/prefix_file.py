"""Prefix files: system prompts whose KV blocks are computed at startup (`--pin-prefix`)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

from app.config.cache_config import CacheConfig
from app.config.unicode_text import read_unicode
from app.contract.errors import ConfigurationError
from app.text.entry.frontend import TextFrontend

MAX_PROMPT_BYTES = 2**20


def read_prefixes(settings: CacheConfig, text: TextFrontend) -> dict[str, Sequence[int]]:
    """Return, for each prefix file, the common first tokens of all chats with its system prompt. Blocks.

    Without a chat template these are the tokens of the text.

    Raises:
        ConfigurationError: a file cannot be read, is empty or too long, or prefix caching is disabled.
    """
    if settings.pin_prefix and not settings.enable_prefix_caching:
        raise prefix_rejection("pin_prefix needs prefix caching; leave out --no-enable-prefix-caching.")
    return {name: _common_tokens(_read(Path(name)), text) for name in settings.pin_prefix}


def prefix_rejection(message: str) -> ConfigurationError:
    """Return the error for a prefix that cannot be pinned."""
    return ConfigurationError(message, param="pin_prefix")


def _read(file: Path) -> str:
    try:
        if (size := file.stat().st_size) > MAX_PROMPT_BYTES:
            raise prefix_rejection(f"The prefix file {file} has {size} bytes; at most {MAX_PROMPT_BYTES} are allowed.")
        prompt = read_unicode(file).strip()
    except OSError as error:
        raise prefix_rejection(f"Cannot read the prefix file {file}: {error.strerror}.") from None
    except ValueError as error:
        raise prefix_rejection(f"The prefix file {error}.") from None
    if not prompt:
        raise prefix_rejection(f"The prefix file {file} is empty; it must contain the text of a system prompt.")
    return prompt


def _common_tokens(prompt: str, text: TextFrontend) -> Sequence[int]:
    if text.chat_template is None:
        return text.tokenizer.encode(prompt)
    system: dict[str, object] = {"role": "system", "content": prompt}
    one, other = (text.chat_template.render([system, {"role": "user", "content": word}]) for word in ("a", "7"))
    return [token for token, _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))]
