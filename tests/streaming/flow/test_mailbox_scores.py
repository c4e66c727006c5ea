"""The scores of a prompt in a mailbox: they come first, and count until the reader returns."""

import pytest

from app.contract.events import PromptScored, RequestFailed
from app.contract.packed_logprobs import Logprobs, row_bytes
from app.streaming.flow.flow_window import AccountBytes, Lag, Watermarks
from app.streaming.flow.mailbox import Mailbox
from tests.streaming.flow.events import ERROR, delta, finished

ROWS = 4095
SCORED = PromptScored("r", Logprobs(20, bytes(ROWS * row_bytes(20))))
NUM_BYTES = ROWS * row_bytes(20)


@pytest.fixture
def pending():
    return AccountBytes()


def test_scores_come_before_the_tokens_and_count_until_the_reader_returns(pending):
    mailbox = Mailbox(pending=pending)
    mailbox.put(SCORED, 1)
    mailbox.put(delta(1, "a"), 1)
    mailbox.put(finished(), 2)
    assert mailbox.has_more and pending.num_bytes > NUM_BYTES
    assert mailbox.poll() == SCORED
    assert pending.num_bytes > NUM_BYTES, "the reader may still write them"
    assert mailbox.poll() == delta(1, "a")
    assert pending.num_bytes == 0
    assert mailbox.poll() == finished() and mailbox.poll() is None


async def test_get_returns_scores_and_tokens_together():
    mailbox = Mailbox()
    mailbox.put(SCORED, 1)
    mailbox.put(delta(1, "a"), 1)
    assert await mailbox.get() == [SCORED, delta(1, "a")]


def test_scores_reach_no_watermark_and_tokens_after_them_do(pending):
    lags = []
    marks = Watermarks(high_tokens=2, low_tokens=1)
    mailbox = Mailbox(marks=marks, pending=pending, on_lag=lags.append)
    mailbox.put(SCORED, 1)
    mailbox.put(delta(1, "a"), 2)
    assert lags == [] and pending.num_bytes > marks.full_bytes
    mailbox.put(delta(2, "b"), 3)
    mailbox.put(delta(3, "c"), 4)
    assert lags == [Lag.SLOW]


@pytest.mark.parametrize("drop", ["close", "discard_text"])
def test_scores_that_nobody_wants_are_dropped(pending, drop):
    mailbox = Mailbox(pending=pending)
    mailbox.put(SCORED, 1)
    getattr(mailbox, drop)()
    assert pending.num_bytes == 0 and not mailbox.has_more
    mailbox.put(SCORED, 2)
    assert pending.num_bytes == 0 and mailbox.poll() is None


def test_a_failure_comes_after_the_scores(pending):
    mailbox = Mailbox(pending=pending)
    mailbox.put(SCORED, 1)
    mailbox.put(RequestFailed("r", ERROR), 2)
    assert [mailbox.poll(), mailbox.poll()] == [SCORED, RequestFailed("r", ERROR)]
    assert pending.num_bytes == 0
