"""A process that finds masks, for the tests that speak to one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from app.text.grammar.children.fork_client import ForkClient
from tests.text.grammar.children.mask_process import EOS, TEXT, Worker


@pytest.fixture(scope="module")
def children() -> Iterator[ForkClient]:
    made = ForkClient(TEXT, TEXT.vocab_size, (EOS,))
    made.start()
    yield made
    made.close()


@pytest.fixture
def worker(children: ForkClient) -> Iterator[Worker]:
    made = Worker(children)
    yield made
    made.close()
