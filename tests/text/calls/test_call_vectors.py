"""A table of answers, and what is read of them, of every family: `calls.json` in `tests/vectors`."""

import json
from pathlib import Path
from typing import Any

import pytest

from app.text.calls.formats import FORMATS
from app.text.reading.answer_events import Arguments, CallBegin, CallEnd, Event
from tests.text.answer.answers import parse_calls, shown, text_of

VECTORS: dict[str, list[dict[str, Any]]] = json.loads(
    (Path(__file__).parents[2] / "vectors/calls.json").read_text(encoding="utf-8")
)
CASES = [pytest.param(name, row, id=f"{name} {index}") for name in VECTORS for index, row in enumerate(VECTORS[name])]


def found_in(events: list[Event]) -> dict[str, Any]:
    """The calls of an answer, each with its name, its arguments and whether they are complete, and its text."""
    whole = {event.call for event in events if isinstance(event, CallEnd)}
    calls = [[event.name, "", event.call in whole] for event in events if isinstance(event, CallBegin)]
    for event in events:
        if isinstance(event, Arguments):
            calls[event.call][1] += event.text
    return {"calls": calls, "text": text_of(events)}


def test_every_family_has_a_table():
    assert VECTORS.keys() == FORMATS.keys()


@pytest.mark.parametrize(("name", "row"), CASES)
def test_an_answer_is_read_as_the_table_says_wherever_it_is_cut(name: str, row: dict[str, Any]):
    """With "tokens" among `marks` the marks are special tokens of the model, with "text" they are not."""
    for special in (FORMATS[name].syntax.marks if kind == "tokens" else () for kind in row["marks"]):
        text = shown(row["answer"], special)
        for pieces in (list(text), *([text[:place], text[place:]] for place in range(len(text) + 1))):
            found = found_in(parse_calls(name, *pieces, special=special))
            assert found == {"calls": row["calls"], "text": shown(row["text"], special)}
