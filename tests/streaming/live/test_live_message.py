"""Messages as bytes: differences applied to the whole are the next whole, whatever happens to the blocks."""

import msgspec
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from app.client.live_picture import LivePicture
from app.contract.live_state import HEADER
from app.streaming.live.live_message import LiveMessage
from app.streaming.live.picture_blocks import OWNER_BITS
from tests.cases import examples
from tests.streaming.live.vectors import CASES, messages_of

[WHOLE] = messages_of(*CASES["records were lost"])
STATE = WHOLE[HEADER.size : HEADER.size + HEADER.unpack_from(WHOLE)[2]]
cells = st.tuples(st.integers(0, 5) | st.integers(0x80, 0x85), st.integers(0, 3) | st.integers(0, 2**35 - 1))
changes = st.lists(st.dictionaries(st.integers(0, 199), cells, max_size=40), max_size=5)


def state_of(num_blocks: int) -> bytes:
    """The JSON part for so many blocks."""
    return msgspec.json.encode({**msgspec.json.decode(STATE), "num_blocks": num_blocks})


@settings(max_examples=examples(300), deadline=None)
@given(num_blocks=st.integers(1, 200), steps=changes)
def test_differences_applied_to_the_whole_are_the_next_whole(num_blocks, steps):
    now, state = np.zeros(num_blocks, np.int64), state_of(num_blocks)
    message, seen = LiveMessage(1, state, now, None), LivePicture()
    seen.receive(message.whole())
    for number, step in enumerate(steps, 2):
        before, now = now, now.copy()
        for place, (byte, owner) in step.items():
            if place < num_blocks:
                now[place] = byte | owner << OWNER_BITS
        message = LiveMessage(number, state, now, before)
        seen.receive(message.difference)
        fresh = LivePicture()
        fresh.receive(message.whole())
        assert (seen.flags, seen.owners) == (fresh.flags, fresh.owners)
        assert [owner << OWNER_BITS | byte for byte, owner in zip(seen.flags, seen.owners, strict=True)] == now.tolist()


def test_the_first_message_has_no_difference_and_a_whole_one_is_made_once():
    message = LiveMessage(1, STATE, np.zeros(16, np.int64), None)
    assert message.difference is None and message.made_whole is None
    assert message.whole() is message.whole() is message.made_whole


def test_nothing_changed_is_a_message_without_blocks():
    now = np.zeros(16, np.int64)
    assert LiveMessage(2, STATE, now, now.copy()).difference == HEADER.pack(1, 2, len(STATE)) + STATE
