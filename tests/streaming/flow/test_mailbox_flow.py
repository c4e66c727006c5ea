"""A mailbox delivers tokens within the credit, and reports a lag when too many are undelivered."""

import asyncio
from dataclasses import replace

from app.contract.events import ChoiceEnd, EngineEvent, FinishReason, Phase, Progress, RequestFailed
from app.streaming.flow.flow_window import AccountBytes, Credit, Lag, Watermarks
from app.streaming.flow.mailbox import Mailbox
from tests.streaming.flow.events import ERROR, delta, finished

# --- Credit -----------------------------------------------------------------------------------------------------------


def poll_all(mailbox: Mailbox) -> list[EngineEvent]:
    events = []
    while (event := mailbox.poll()) is not None:
        events.append(event)
    return events


def test_tokens_are_delivered_within_the_credit_and_ends_after_their_text():
    credit = Credit()
    mailbox = Mailbox(2, credit=credit)
    credit.grant([2, 0])
    for event in (delta(1, "a"), delta(2, "b"), delta(3, "c"), finished(), delta(1, "x", 1)):
        mailbox.put(event)
    assert poll_all(mailbox) == [delta(1, "ab", count=2)]
    credit.grant([1, 1])  # credit never falls
    assert poll_all(mailbox) == [delta(1, "x", 1)]
    credit.grant([3])
    assert poll_all(mailbox) == [delta(3, "c"), finished()]


def test_one_credit_delivers_one_token():
    credit = Credit()
    mailbox = Mailbox(credit=credit)
    for number in range(1, 6):
        mailbox.put(delta(number, str(number)))
    for number in range(1, 6):
        credit.grant([number])
        assert poll_all(mailbox) == [delta(number, str(number))]


def test_choices_take_turns():
    credit = Credit()
    mailbox = Mailbox(2, credit=credit)
    credit.grant([1, 5])
    for number in (1, 2):
        mailbox.put(delta(number, "a"))
        mailbox.put(delta(number, "x", 1))
    assert [event.choice for event in poll_all(mailbox)] == [0, 1]
    credit.grant([9])
    assert poll_all(mailbox) == [delta(2, "a")]


def test_a_failure_needs_no_credit_and_drops_pending_text():
    pending = AccountBytes()
    mailbox = Mailbox(credit=Credit(1), pending=pending)
    for event in (delta(1, "a"), delta(2, "b"), RequestFailed("r", ERROR)):
        mailbox.put(event)
    assert poll_all(mailbox) == [delta(1, "a"), RequestFailed("r", ERROR)]
    assert pending.num_bytes == 0


def test_a_cancelled_end_needs_no_credit():
    credit, pending = Credit(), AccountBytes()
    mailbox = Mailbox(2, credit=credit, pending=pending)
    credit.grant([2, 0])
    for number in (1, 2, 3):
        mailbox.put(delta(number, "a"))
        mailbox.put(delta(number, "x", 1))
    for choice in (0, 1):
        mailbox.put(replace(finished(choice), end=ChoiceEnd(FinishReason.CANCELLED)))
    events = poll_all(mailbox)
    assert events[0] == delta(1, "aa", count=2)
    assert [(event.choice, event.reason) for event in events[1:]] == [(0, "cancelled"), (1, "cancelled")]
    assert pending.num_bytes == 0


def test_a_mailbox_lacks_credit_if_all_pending_tokens_are_beyond_it():
    credit = Credit()
    mailbox = Mailbox(2, credit=credit)
    assert not mailbox.lacks_credit
    credit.grant([1, 0])
    mailbox.put(delta(1, "x", 1))
    assert mailbox.lacks_credit
    mailbox.put(delta(1, "a"))
    assert not mailbox.lacks_credit
    mailbox.poll()
    assert mailbox.lacks_credit
    credit.grant([1, 5])
    assert not mailbox.lacks_credit


def test_discard_text_leaves_ends_and_marks_choices_that_lost_text_as_cancelled():
    mailbox = Mailbox(3, credit=Credit(0))
    stopped = replace(finished(), end=ChoiceEnd(FinishReason.STOP, "a stop string"))
    for event in (delta(1, "a"), stopped, finished(1)):
        mailbox.put(event)
    mailbox.discard_text()
    mailbox.discard_text()
    for event in (delta(1, "x", 2), finished(2)):
        mailbox.put(event)
    cancelled = ChoiceEnd(FinishReason.CANCELLED)
    ends = {event.choice: event.end for event in poll_all(mailbox)}
    assert ends == {0: cancelled, 1: ChoiceEnd(FinishReason.STOP), 2: cancelled}


# --- Progress ---------------------------------------------------------------------------------------------------------


def test_the_latest_progress_is_delivered_without_credit():
    mailbox = Mailbox(credit=Credit(0))
    mailbox.put(Progress("r", Phase.QUEUED, 0, 9))
    mailbox.put(Progress("r", Phase.PREFILL, 4, 9))
    mailbox.put(delta(1, "a"))
    assert poll_all(mailbox) == [Progress("r", Phase.PREFILL, 4, 9)]


# --- Watermarks -------------------------------------------------------------------------------------------------------


def mailbox_with_lags(*, credit: Credit | None = None, **marks: int) -> tuple[Mailbox, list[Lag]]:
    lags = []
    return Mailbox(marks=Watermarks(**marks), credit=credit, on_lag=lags.append), lags


def fill(mailbox: Mailbox, first: int, count: int, text: str = "x") -> None:
    for number in range(first, first + count):
        mailbox.put(delta(number, text))


def test_a_lag_is_reported_above_the_high_watermark_and_ends_at_the_low_one():
    credit = Credit(176)
    mailbox, lags = mailbox_with_lags(credit=credit)
    fill(mailbox, 1, 192)
    assert lags == []
    fill(mailbox, 193, 49)
    assert lags == [True]
    assert len(poll_all(mailbox)[0].token_ids) == 176
    assert lags == [True]  # 65 are pending
    credit.grant([177])
    poll_all(mailbox)
    assert lags == [True, False]
    fill(mailbox, 242, 128)
    assert lags == [True, False]
    fill(mailbox, 370, 1)
    assert lags == [True, False, True]


def test_polled_tokens_are_undelivered_until_the_next_poll():
    mailbox, lags = mailbox_with_lags(high_tokens=10, low_tokens=2)
    fill(mailbox, 1, 6)
    assert len(mailbox.poll().token_ids) == 6
    fill(mailbox, 7, 4)
    assert lags == []
    fill(mailbox, 11, 1)
    assert lags == [True]
    assert len(mailbox.poll().token_ids) == 5  # no token is pending: generation can continue
    assert mailbox.poll() is None
    assert lags == [True, False]


def test_has_more_after_a_poll_of_many_tokens():
    mailbox, lags = mailbox_with_lags(high_tokens=20, low_tokens=4)
    fill(mailbox, 1, 3)
    mailbox.poll()
    assert not mailbox.has_more
    fill(mailbox, 4, 9)
    mailbox.poll()
    assert mailbox.has_more
    mailbox.poll()
    assert not mailbox.has_more
    fill(mailbox, 13, 1)
    assert lags == []


def test_tokens_of_one_report_are_a_lag_only_when_more_arrive():
    mailbox, lags = mailbox_with_lags(high_tokens=10)
    for number in range(1, 31):
        mailbox.put(delta(number, "x"), 1)
    assert lags == []
    mailbox.put(delta(31, "x"), 2)
    assert lags == [True]


def test_a_stream_of_one_report_never_lags():
    mailbox, lags = mailbox_with_lags(high_tokens=10)
    mailbox.put(delta(1, "long", count=500), 1)
    mailbox.put(finished(), 1)
    assert lags == []


def test_pending_bytes_have_a_high_watermark():
    mailbox, lags = mailbox_with_lags()
    fill(mailbox, 1, 6, "x" * 8192)
    assert lags == []
    fill(mailbox, 7, 1)
    assert lags == [True]


async def test_a_reader_that_waits_in_get_ends_the_lag():
    mailbox, lags = mailbox_with_lags(high_tokens=4, low_tokens=1)
    fill(mailbox, 1, 5)
    assert len(await mailbox.get()) == 1
    reader = asyncio.create_task(mailbox.get())
    await asyncio.sleep(0)
    assert lags == [True, False]
    fill(mailbox, 6, 1)
    await reader


def test_a_closed_mailbox_reports_no_lag():
    mailbox, lags = mailbox_with_lags(high_tokens=2)
    mailbox.close()
    fill(mailbox, 1, 9)
    assert lags == []


def test_on_ready_is_called_for_every_event_and_may_poll():
    credit, polled = Credit(1), []
    mailbox = Mailbox(credit=credit, on_ready=lambda: polled.append(mailbox.poll()))
    mailbox.put(delta(1, "a"))
    mailbox.wake()
    mailbox.put(delta(2, "b"))
    credit.grant([2])
    mailbox.wake()
    assert polled == [delta(1, "a"), None, None, delta(2, "b")]
