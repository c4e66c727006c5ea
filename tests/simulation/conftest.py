"""Silences the engine's log: the simulated faults would fill it."""

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def quiet_engine() -> Iterator[None]:
    logger = logging.getLogger("quire.engine")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(level)
