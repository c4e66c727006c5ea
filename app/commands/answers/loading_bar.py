"""The bar that is shown while a model loads in a terminal command, and the log's lines above it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

DELAY_S = 0.5
"""Small models load before a bar could be read."""
_SHOWN = "Loading {percentage:3.0f}% {bar}"


@contextmanager
def loading_bar(delay_s: float = DELAY_S) -> Iterator[Callable[[float], None]]:
    """Show a bar on standard error for the time of a block, if that is a terminal; yield what moves it (0..1).

    Messages of the log, of any thread, get lines of their own above it. Main thread only.
    """
    with (
        tqdm(total=100, bar_format=_SHOWN, delay=delay_s, leave=False, disable=None) as bar,
        logging_redirect_tqdm(),
    ):
        yield lambda share: bar.update(round(100 * share) - bar.n) and None
