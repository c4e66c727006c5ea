"""The recording for the tour is small, says what it is to show, and can be read as what a server sends today."""

import jsonschema
import msgspec
import pytest

from app.client.live_picture import LivePicture
from app.contract.live_state import HEADER, LiveState, live_schema
from tools.live_recording import FILE, MAX_BYTES, NEEDED, QUESTIONS, events_of, pack, unpack

CONTENT = FILE.read_bytes()


def states() -> list[LiveState]:
    """The JSON part of each message, read one after the other."""
    picture, found = LivePicture(), []
    for message in unpack(CONTENT):
        picture.receive(message)
        assert picture.state is not None
        found.append(picture.state)
    return found


def test_a_file_has_the_messages_that_were_packed():
    messages = [b"one", b"", b"three" * 100]
    assert unpack(pack(messages)) == messages


def test_the_recording_is_small_enough_to_be_sent_to_a_browser():
    """If this or another of these tests fails: `python -m tools.live_recording`."""
    assert 10_000 < len(CONTENT) <= MAX_BYTES


def test_a_copy_a_preemption_and_a_swap_are_seen_and_every_answer_ends():
    seen = states()
    events = [event for state in seen for event in events_of(state)]
    assert set(events) >= NEEDED
    assert events.count("ended") == len(QUESTIONS)
    assert not seen[0].groups and not seen[-1].groups
    assert any(state.host.used for state in seen)
    assert min(state.blocks.free + state.blocks.cached for state in seen) == 0


def test_no_record_is_missing_and_no_step_comes_twice():
    seen = states()
    assert sum(state.lost for state in seen) == 0
    steps = [record[1] for state in seen for record in msgspec.to_builtins(state.records) if record[0] == "step"]
    assert steps == sorted(set(steps))


@pytest.mark.long
def test_each_json_part_is_in_the_schema():
    for message in unpack(CONTENT):
        length = HEADER.unpack_from(message)[2]
        jsonschema.validate(msgspec.json.decode(message[HEADER.size : HEADER.size + length]), live_schema())
