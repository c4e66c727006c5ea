"""The recorded messages that decoders are held to are what the server sends, and what they say is in the schema."""

import base64
import json

import jsonschema
import pytest

from app.client.live_picture import LivePicture
from app.contract.live_state import live_schema
from tests.streaming.live.vectors import PATH, vectors

CASES = json.loads(PATH.read_text(encoding="utf-8"))["cases"]


def test_the_file_is_what_the_server_sends():
    """If this fails: `python -m tests.streaming.live.vectors`."""
    assert PATH.read_text(encoding="utf-8") == vectors()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_messages_say_what_is_recorded(case):
    seen = LivePicture()
    for message in case["messages"]:
        seen.receive(base64.b64decode(message["base64"]))
        assert seen.number == message["number"]
        assert [list(run) for run in seen.runs()] == message["runs"]
        assert sum(count for count, _, _ in seen.runs()) == message["state"]["num_blocks"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_the_json_part_is_in_the_schema(case):
    for message in case["messages"]:
        jsonschema.validate(message["state"], live_schema())


@pytest.mark.parametrize("field", ["time", "groups", "figures", "blocks"])
def test_without_one_of_its_fields_it_is_not(field):
    state = {name: value for name, value in CASES[0]["messages"][0]["state"].items() if name != field}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(state, live_schema())
