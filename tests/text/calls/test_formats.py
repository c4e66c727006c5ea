"""All families: what is written as calls is read as the same calls, however the text is cut."""

import json
import sys
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.text.calls.formats import FORMATS
from app.text.reading import json_span
from app.text.reading.answer_events import Arguments, CallBegin, Text
from app.text.reading.marks import SHOWN, Marks
from app.text.reading.parser import Parser
from app.text.reading.reader import BLANKS, MAX_BLANKS, MAX_KEPT
from tests.cases import examples, long
from tests.text.answer.answers import (
    AS_PYTHON,
    SCHEMAS,
    WITH_PARAMETERS,
    WRITERS,
    calls_of,
    cut,
    parse_calls,
    shown,
    text_of,
)

MARKS = sorted({mark for row in FORMATS.values() for mark in row.syntax.marks})
WORDS = st.lists(
    st.sampled_from(["a", "é", "猫", "🙂", " ", "\n", '"', "\\", "{", "}", "[", "]", "<", ">", ":", ",", "`", "0"]),
    max_size=8,
).map("".join)
SPELLED = st.lists(st.one_of(WORDS, st.sampled_from(MARKS)), max_size=5).map("".join)
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-9, 10**12), SPELLED),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(SPELLED, inner, max_size=3)),
    max_leaves=6,
)
NAMES = st.sampled_from(["search", "get-time", "a_1"])
PLACE = st.integers(0, 2**16)
PLACES = st.lists(PLACE, max_size=12)
PLAIN = st.sampled_from(["", "I will look.", "Two  words\nand lines", "<b>x</b> [1] {2}", "a < b"])


def typed_calls(values: st.SearchStrategy[str]) -> st.SearchStrategy[list]:
    """Calls whose arguments have the types of the schema."""
    fields = st.fixed_dictionaries(
        {}, optional={"text": values, "count": st.integers(), "is_new": st.booleans(), "rest": st.lists(st.integers())}
    )
    return st.lists(st.tuples(NAMES, fields), min_size=1, max_size=4)


def free_calls(keys: st.SearchStrategy[str]) -> st.SearchStrategy[list]:
    """Calls with any arguments, among them texts that spell marks."""
    return st.lists(st.tuples(NAMES, st.dictionaries(keys, JSON, max_size=3)), min_size=1, max_size=4)


def way_of(name: str) -> str:
    """How a family writes calls: names a strategy of CALLS."""
    return "with parameters" if name in WITH_PARAMETERS else "as Python" if name in AS_PYTHON else "as JSON"


CALLS = {
    "with parameters": typed_calls(WORDS.filter(lambda text: not any(char in "<\n" for char in text))),
    "as Python": free_calls(st.sampled_from(["a", "b_2", "from"])),
    "as JSON": free_calls(SPELLED),
}
TEXT_CALLS = typed_calls(st.just("some text"))


@pytest.mark.parametrize("name", WRITERS)
@settings(max_examples=examples(40))
@given(data=st.data())
def test_calls_are_read_as_they_were_written(name, data):
    check_calls(name, *map(data.draw, (CALLS[way_of(name)], PLAIN, PLAIN, PLACES)))


def check_calls(name: str, calls: list, before: str, after: str, places: list[int]) -> None:
    """Calls between two texts are read as they were written, whole, in pieces and by characters."""
    text = before + WRITERS[name](calls) + after
    events = parse_calls(name, text)
    if name == "deepseek":
        calls = [*calls[::2], *calls[1::2]]
    assert calls_of(events) == calls
    assert text_of(events) == before + after
    assert parse_calls(name, *cut(text, places)) == events
    assert parse_calls(name, *text) == events


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=examples(60))
@given(data=st.data())
def test_every_cut_of_any_text_gives_the_same_events(name, data):
    """Texts made of marks and of what stands between them, most of which are no calls."""
    parts = [
        *FORMATS[name].syntax.marks, '{"name": "search", "arguments": {', '"x": 1}', "}", '{"name": "', "search", '"',
        '"parameters": ', "\n", "   ", "text", "[", "]", ",", "```json\n", "```", "\\", "x" * 90, " " * MAX_BLANKS,
        "search(", "text=", "'", ")", "(", "{", "x41", "012", "True", "-1.5e3", ":", "é",
    ]  # fmt: skip
    text = "".join(data.draw(st.lists(st.sampled_from(parts), max_size=14)))
    special = data.draw(st.sampled_from([(), FORMATS[name].syntax.marks]))
    text = shown(text, special) if data.draw(st.booleans()) else text
    events = parse_calls(name, text, special=special)
    assert parse_calls(name, *cut(text, data.draw(PLACES)), special=special) == events
    assert parse_calls(name, *text, special=special) == events
    if not any(isinstance(event, CallBegin) for event in events):
        assert text_of(events) == text


@pytest.mark.parametrize("name", WRITERS)
@settings(max_examples=examples(30))
@given(data=st.data())
def test_a_truncated_answer_begins_as_the_whole_one(name, data):
    check_truncated(name, data.draw(TEXT_CALLS), data.draw(PLACE))


def check_truncated(name: str, calls: list, place: int) -> None:
    """An answer that ends at a place (modulo its length) begins with the events of the whole one."""
    text = "Well. " + WRITERS[name](calls)
    whole = parse_calls(name, text)
    names = [event.name for event in whole if isinstance(event, CallBegin)]
    size = place % (len(text) + 1)
    events = parse_calls(name, text[:size])
    found = [event.name for event in events if isinstance(event, CallBegin)]
    assert found == names[: len(found)]
    pieces = {event.call: event.text for event in events if isinstance(event, Arguments)}
    expected = {event.call: event.text for event in whole if isinstance(event, Arguments)}
    for index, piece in pieces.items():  # a mark that is cut off is part of a parameter
        before = piece.split("<")[0].removesuffix(r"\n") if name in WITH_PARAMETERS else piece
        assert expected[index].startswith(before)
    assert text_of(events).startswith("Well."[:size])


@pytest.mark.parametrize("name", WRITERS)
def test_marks_that_are_special_tokens_are_not_found_in_text(name):
    special = [mark for mark in FORMATS[name].syntax.marks if mark != ">"]
    text = WRITERS[name]([("search", {"text": "x"})])
    if name == "llama_json":
        text = f" {text}"
    assert parse_calls(name, text, special=special) == [Text(text)]
    assert calls_of(parse_calls(name, shown(text, special), special=special)) == [("search", {"text": "x"})]


@pytest.mark.parametrize("name", WRITERS)
def test_arguments_are_the_models_own_characters(name):
    if name in (*WITH_PARAMETERS, *AS_PYTHON):
        return
    text = WRITERS[name]([("search", {"a": 1.0})]).replace('{"a": 1.0}', '{ "a" :1.0, "b":[ ] }')
    assert Arguments(0, '{ "a" :1.0, "b":[ ] }') in parse_calls(name, text)


@pytest.mark.parametrize("name", WRITERS)
def test_blanks_beside_calls_belong_to_nobody(name):
    text = f"One.  \n\n{WRITERS[name]([('search', {}), ('a_1', {})])}\n\n"
    assert text_of(parse_calls(name, text)) == "One."
    assert text_of(parse_calls(name, f"\n{WRITERS[name]([('search', {})])}\n Two.")).lstrip(BLANKS) == "Two."


@pytest.mark.parametrize("name", FORMATS)
def test_little_text_is_held_back(name):
    """What an answer without a call holds back is at most a name, a mark and blanks."""
    row, opening = FORMATS[name], FORMATS[name].syntax.marks[0]
    longest = max(map(len, row.syntax.marks))
    bodies = ("", '{"name": "', '{"x": "', "<function=", "[", "[f(", "[f(a='", "[f(a=[{'b': ", "[f(a=1, ")
    for begin in ("", *(opening + body for body in bodies)):
        parser, text, num_seen = Parser(row.syntax.machine(SCHEMAS)), begin + "y" * 4000, 0
        for number, char in enumerate(text, 1):
            num_seen += sum(len(event.text) for event in parser.feed(char) if isinstance(event, Text | Arguments))
            if number > MAX_KEPT + longest + MAX_BLANKS:
                assert number - num_seen <= MAX_KEPT + longest + MAX_BLANKS


def repeated(name: str) -> list[tuple[str, int]]:
    """Texts that an answer of a family may consist of, and how often each is repeated."""
    once = "Some text. " + WRITERS[name]([("search", {"text": "x" * 300, "count": 7})] * 3) + " < [ { " * 20
    begun = FORMATS[name].syntax.marks[0]
    texts = [(once, 4), (begun, 500), (f'{begun}{{"x": "', 300)]
    return texts + ([(f"{begun}[f(a='' ' ", 60), (f"{begun}[f(a=[", 200)] if name in AS_PYTHON else [])


@pytest.mark.parametrize("name", WRITERS)
def test_the_work_for_a_text_at_once_grows_with_the_text_only(name, monkeypatch):
    for text, times in repeated(name):
        once, twice = (sum(num_steps(name, [[text * times * factor]], monkeypatch)) for factor in (2, 4))
        assert twice <= 2.1 * once


@pytest.mark.parametrize("size", [1, long(7)])
@pytest.mark.parametrize("name", WRITERS)
def test_each_piece_of_a_text_takes_the_same_work(name, size, monkeypatch):
    """After the first quarter, which is longer than what is kept of a text."""
    for text, times in repeated(name):
        pieces = [text[start : start + size] for start in range(0, len(text), size)]
        parts = [pieces * (times // share) for share in (4, 4, 2)]
        _, second_quarter, second_half, end = num_steps(name, parts, monkeypatch)
        assert second_half <= 2.02 * second_quarter
        assert end <= second_quarter


def num_steps(name: str, parts: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The lines that run and the characters that are searched for each part of a text, in pieces, and for its end."""
    num_steps = 0
    find, scan = Marks.find, json_span.JsonSpan.scan

    def count_find(self, text, start, stop=None):
        nonlocal num_steps
        match = find(self, text, start, stop)
        num_steps += ((len(text) if stop is None else stop) if match is None else match.end()) - start
        return match

    def count_scan(self, text, start, stop=None):
        nonlocal num_steps
        end = scan(self, text, start, stop)
        num_steps += end - start
        return end

    def trace(frame, event, argument):
        nonlocal num_steps
        num_steps += 1
        return trace

    parser, found = Parser(FORMATS[name].syntax.machine(SCHEMAS)), [0]
    with monkeypatch.context() as patch:
        patch.setattr(Marks, "find", count_find)
        patch.setattr(json_span.JsonSpan, "scan", count_scan)
        before = sys.gettrace()
        sys.settrace(trace)
        try:
            for part in parts:
                for piece in part:
                    parser.feed(piece)
                found.append(num_steps)
            parser.finish()
            found.append(num_steps)
        finally:
            sys.settrace(before)
    return [after - before for before, after in pairwise(found)]


def test_no_mark_of_a_family_begins_with_another():
    for row in FORMATS.values():
        marks = row.syntax.marks
        assert [(a, b) for a in marks for b in marks if a != b and b.startswith(a)] == [] or row.name in (
            "qwen3_coder",
        )
        assert not any(mark.startswith(SHOWN) for mark in marks)
        resolved = row.syntax.resolved(frozenset(marks)).marks
        assert all(mark.startswith(SHOWN) for mark in resolved)
        assert json.dumps(resolved)


@pytest.mark.parametrize("name", WRITERS)
def test_what_the_end_cuts_off_behind_a_call_is_no_text(name):
    """Wherever an answer of two calls ends: marks and calls that are cut off are text only before the first call."""
    calls = [("search", {"text": "x"}), ("a_1", {"text": "y"})]
    text = WRITERS[name](calls)
    num_with_calls = 0
    for size in range(len(text) + 1):
        events = parse_calls(name, text[:size])
        if any(isinstance(event, CallBegin) for event in events):
            num_with_calls += 1
            assert text_of(events) == "", text[:size]
        else:
            assert text_of(events) == text[:size], text[:size]
        assert parse_calls(name, *text[:size]) == events
    assert num_with_calls > len(text) // 2


def test_a_mark_that_is_cut_off_behind_text_behind_a_call_is_no_text():
    call = '<tool_call>{"name": "a_1", "arguments": {}}'
    for rest, expected in {
        "</tool_call> So <tool_c": " So",
        "</tool_call> a < b <": " a < b",
        "</tool_call> So </tool": " So </tool",  # closed before
        "</tool_call> So <tool_call> x": " So <tool_call> x",  # no call
    }.items():
        events = parse_calls("hermes", call + rest)
        assert (calls_of(events), text_of(events)) == ([("a_1", {})], expected.strip())
    assert text_of(parse_calls("hermes", "So <tool_c")) == "So <tool_c"
