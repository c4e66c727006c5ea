"""After which ends of a connection a client comes back, and when."""

import pytest

from app.client.comeback import Backoff, Comeback, comeback_after, comeback_after_status


@pytest.mark.parametrize(
    ("comeback", "codes"),
    [
        (Comeback.NEVER, (1000, 1003, 1007, 1008, 1009, 4400, 4401, 4406, 4409)),
        (Comeback.SOON, (1001, 1005, 1006, 1011, 1012, 1013, 1014, 4408, 4503)),
        (Comeback.LATER, (4429,)),
        (Comeback.WHEN_READ, (4499,)),
    ],
)
def test_a_client_comes_back_unless_it_has_caused_the_end(comeback: Comeback, codes: tuple[int, ...]) -> None:
    assert {comeback_after(code) for code in codes} == {comeback}


def test_a_rejected_handshake_is_tried_again_where_the_server_may_be_busy() -> None:
    statuses = {401: Comeback.NEVER, 403: Comeback.NEVER, 429: Comeback.LATER, 502: Comeback.SOON, 503: Comeback.SOON}
    assert {status: comeback_after_status(status) for status in statuses} == statuses


def test_delays_grow_from_half_a_second_to_eight_with_full_jitter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.client.comeback.random.uniform", lambda low, high: (low, high))
    bounds = [Backoff().delay(attempts, Comeback.SOON) for attempts in range(7)]
    assert bounds == [(0, 0.5), (0, 1), (0, 2), (0, 4), (0, 8), (0, 8), (0, 8)]


def test_after_too_many_messages_a_client_waits_for_eight_seconds_or_more() -> None:
    assert all(8 <= Backoff().delay(attempts, Comeback.LATER) <= 16 for attempts in range(3))
