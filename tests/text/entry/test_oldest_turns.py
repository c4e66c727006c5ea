"""Chats that are too long lose their oldest turns: whole ones, calls with their results, few renderings."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.text.entry.oldest_turns import without_oldest

Chat = list[dict[str, Any]]
ROLES = {"s": "system", "u": "user", "a": "assistant"}


def chat(roles: str) -> Chat:
    """A message for each letter; `c` is a call, `r` the result of the oldest call that has none yet."""
    messages: Chat = []
    open_calls: list[str] = []
    for number, letter in enumerate(roles):
        text = {"content": f"{number}"}
        if letter == "c":
            open_calls.append(f"call_{number}")
            function = {"name": "f", "arguments": "{}"}
            call = {"id": open_calls[-1], "type": "function", "function": function}
            messages.append({"role": "assistant", "tool_calls": [call], **text})
        elif letter == "r":
            called = open_calls.pop(0) if open_calls else "unknown"
            messages.append({"role": "tool", "tool_call_id": called, **text})
        else:
            messages.append({"role": ROLES[letter], **text})
    return messages


def numbers(messages: Chat) -> str:
    """The numbers of the messages that are kept."""
    return " ".join(message["content"] for message in messages)


def shortened(messages: Chat, most: int, stride: int = 1) -> Chat:
    """What is kept of messages if at most so many fit."""
    return without_oldest(messages, stride, lambda kept: len(kept) <= most)


@pytest.mark.parametrize(
    ("roles", "most", "expected"),
    [
        ("suaua", 5, "0 1 2 3 4"),
        ("suaua", 4, "0 3 4"),
        ("ssuaua", 4, "0 1 4 5"),
        ("suauaua", 6, "0 3 4 5 6"),
        ("suauaua", 4, "0 5 6"),
        ("suauau", 4, "0 3 4 5"),
        ("suauau", 3, "0 5"),
        ("suusauus", 5, "0 5 6 7"),  # a system message beside a question belongs to it
        ("sucrcrcr", 6, "0 1 4 5 6 7"),  # of the last turn, the question stays
        ("sucrcrcr", 4, "0 1 6 7"),
        ("succrrcrrcr", 8, "0 1 6 7 8 9 10"),  # two calls in a row are one step; a result too many stays where it is
        ("suaucrcrcra", 7, "0 3 6 7 8 9 10"),
        ("suaucrcrcra", 8, "0 3 6 7 8 9 10"),
        ("suaucr", 5, "0 3 4 5"),
        ("ucsrcr", 4, "0 4 5"),  # a system message behind a call begins no turn
        ("uaucura", 5, "2 3 4 5 6"),  # nothing begins between a call and its late result
        ("uacura", 4, "3 5"),  # the call goes with its late result
        ("aaua", 2, "2 3"),
        ("ssss", 2, "0 1 2 3"),
        ("acrcr", 4, "3 4"),
        ("suaua", 0, "0 3 4"),
    ],
)
def test_the_oldest_turns_are_left_out(roles, most, expected):
    assert numbers(shortened(chat(roles), most)) == expected


@pytest.mark.parametrize("roles", ["s", "su", "u", "sucr", "ucrr", "", "suu"])
def test_the_system_messages_the_last_question_and_the_last_step_are_kept_though_they_do_not_fit(roles):
    assert shortened(chat(f"s{roles}"), 0) == chat(f"s{roles}")


def test_a_result_without_an_id_belongs_to_the_last_call():
    messages = chat("uaucura")
    del messages[5]["tool_call_id"]
    assert [numbers(shortened(messages, most)) for most in (5, 4)] == ["2 3 4 5 6", "4 6"]


def test_a_result_belongs_to_the_last_call_with_its_id():
    """Some clients give all calls the same one."""
    messages = chat("ucrucrua")
    for message in messages:
        for call in message.get("tool_calls", ()):
            call["id"] = "call_1"
        if "tool_call_id" in message:
            message["tool_call_id"] = "call_1"
    assert numbers(shortened(messages, 5)) == "3 4 5 6 7"


CHATS = st.text("sucra", min_size=1, max_size=40).map(chat)


def calls_of(messages: Chat) -> set[str]:
    return {call["id"] for message in messages for call in message.get("tool_calls", ())}


@given(messages=CHATS, most=st.integers(0, 40), stride=st.integers(0, 400))
def test_what_is_kept_is_the_end_behind_the_system_messages_and_the_last_question(messages, most, stride):
    kept = shortened(messages, most, stride)
    num_systems = next((at for at, each in enumerate(messages) if each["role"] != "system"), len(messages))
    assert kept[:num_systems] == messages[:num_systems]
    places = [int(message["content"]) for message in kept]
    assert places == sorted(places) and [messages[place] for place in places] == kept
    users = [place for place, message in enumerate(messages) if message["role"] == "user"]
    assert not users or users[-1] in places
    left_out = {place for place in range(len(messages)) if place not in places}
    begins = max(left_out, default=-1) + 1  # all from here on is kept
    assert not left_out or messages[begins]["role"] in ("user", "system", "assistant")
    assert len(kept) <= most or kept == shortened(messages, 0, stride), "nothing shorter is possible"


@given(messages=CHATS, most=st.integers(0, 40), stride=st.integers(0, 400))
def test_no_result_is_kept_without_its_call(messages, most, stride):
    kept = shortened(messages, most, stride)
    results = {message["tool_call_id"] for message in kept if message["role"] == "tool"}
    assert results & calls_of(messages) <= calls_of(kept)


@given(messages=CHATS, most=st.integers(0, 40))
def test_no_more_is_left_out_than_needed(messages, most):
    lengths = {len(shortened(messages, each)) for each in range(len(messages) + 1)}
    assert len(shortened(messages, most)) == max((each for each in lengths if each <= most), default=min(lengths))


@pytest.mark.parametrize("turn", ["ua", "ucrcra", "ucccrrr"])
@pytest.mark.parametrize("most", [1, 40, 4096, 8000])
def test_a_long_chat_is_rendered_a_few_times(turn, most):
    """The stride is a quarter of what fits, as in a chat of English text."""
    messages = chat("s" + turn * (8191 // len(turn)))
    sizes: list[int] = []

    def fits(kept: Chat) -> bool:
        sizes.append(len(kept))
        return len(kept) <= most

    chars = sum(len(str(message)) for message in messages) * most // len(messages)
    kept = without_oldest(messages, chars // 4, fits)
    assert most // 2 <= len(kept) <= most or len(kept) <= 1 + len(turn)
    assert sizes.pop(0) == len(messages) and len(sizes) <= 10
    assert sum(sizes) <= 8 * max(most, len(kept))


def test_a_long_chat_with_short_strides_is_rendered_a_few_times_more():
    messages, num_calls = chat("ua" * 4096), 0

    def fits(kept: Chat) -> bool:
        nonlocal num_calls
        num_calls += 1
        return len(kept) <= 2048

    assert len(without_oldest(messages, 1, fits)) == 2048
    assert num_calls <= 2 + 2 * 11


def test_a_chat_that_grows_keeps_its_cut_for_a_stride():
    """Else no request would find the prompt of the one before in the cache."""
    firsts = []
    for num_turns in range(1, 200):
        kept = shortened(chat("s" + "ua" * num_turns), most=40, stride=20 * 16)  # a message has at least 16 characters
        firsts.append(kept[1]["content"])
        assert len(kept) > 40 - 24 or num_turns < 20
    assert len(set(firsts)) <= 200 / 6, "a stride has at least six turns"
