"""What is no message of quire.live.v1 is refused in words."""

import pytest

from app.client.live_picture import LivePicture
from app.contract.live_state import HEADER, CellState
from tests.streaming.live.vectors import CASES, messages_of

MESSAGES = messages_of(*CASES["one answer from its prompt to its end"])


def test_a_picture_is_read():
    seen = LivePicture()
    for message in MESSAGES[:2]:
        seen.receive(message)
    assert seen.number == 2 and seen.state is not None
    assert seen.state.groups[0].id == "chatcmpl-a" and seen.state.groups[0].tables[0].runs == [1, 3]
    assert [seen.state_of(block_id) for block_id in (1, 3, 4)] == [CellState.USED, CellState.USED, CellState.FREE]


def test_a_difference_to_another_message_is_refused():
    seen = LivePicture()
    with pytest.raises(ValueError, match="Message 2 is the difference to 1, but the last one was 0"):
        seen.receive(MESSAGES[1])


@pytest.mark.parametrize("message", [
    b"", b"\x00" * 8, b"\x07" + MESSAGES[0][1:], MESSAGES[0][:-1], MESSAGES[0][:40], MESSAGES[0] + b"\x01\x00\x00",
    MESSAGES[0] + b"\x80\x80\x80\x80\x80\x80\x00\x00", HEADER.pack(0, 1, 2) + b"{}",
])  # fmt: skip
def test_broken_messages_are_refused(message):
    with pytest.raises(ValueError):
        LivePicture().receive(message)


def test_a_difference_beyond_the_last_block_is_refused():
    seen = LivePicture()
    seen.receive(MESSAGES[0])
    kind, number, length = HEADER.unpack_from(MESSAGES[1])
    state = MESSAGES[1][HEADER.size : HEADER.size + length]
    with pytest.raises(ValueError, match="There is no block 99; there are 16"):
        seen.receive(HEADER.pack(kind, number, length) + state + bytes([99, 0, 0]))
