"""Stop strings, compared with a search of the complete text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.text.tokens.stop import StopMatcher

ALPHABET = "abé猫🙂"
STOPS = st.lists(st.text(ALPHABET, min_size=1, max_size=6), min_size=1, max_size=4)
TEXTS = st.text(ALPHABET, max_size=40)


def text_before_stop(text: str, stops: list[str]) -> str | None:
    """The text before the stop string that ends first (the longest of those that end there), or None."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            return text[: end - max(map(len, found))]
    return None


def longest_prefix(text: str, stops: list[str]) -> int:
    """The length of the longest suffix of `text` that is a proper prefix of a stop string."""
    return max(n for n in range(len(text) + 1) if n == 0 or any(s.startswith(text[-n:]) and n < len(s) for s in stops))


@given(STOPS, TEXTS, st.data())
def test_any_split_releases_the_text_before_the_first_stop_string(stops, text, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=12)))
    matcher = StopMatcher(stops)
    parts = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    released = "".join(matcher.append(part) for part in parts)
    expected = text_before_stop(text, stops)
    assert (matcher.matched is not None) == (expected is not None)
    assert released + matcher.flush() == (text if expected is None else expected)


@given(STOPS, TEXTS)
def test_only_the_longest_suffix_that_can_begin_a_stop_string_is_held_back(stops, text):
    matcher = StopMatcher(stops)
    released = ""
    for num_read, char in enumerate(text, start=1):
        released += matcher.append(char)
        if matcher.matched is not None:
            break
        assert released == text[: num_read - longest_prefix(text[:num_read], stops)]


@given(STOPS, TEXTS)
def test_no_stop_string_is_ever_released(stops, text):
    matcher = StopMatcher(stops)
    released = matcher.append(text) + matcher.flush()
    assert not any(stop in released for stop in stops)


@pytest.mark.parametrize(
    ("stops", "text", "released"),
    [
        (["abcd", "bc"], "xabcd", "xa"),  # the stop string that ends first
        (["abc", "bc"], "xabc", "x"),  # the longest of two that end together
        (["ab", "abab"], "abab", ""),  # one is a prefix of the other
        (["aab"], "aaab", "a"),  # a prefix within a prefix
    ],
)
def test_the_first_and_longest_of_several_stop_strings_matches(stops, text, released):
    matcher = StopMatcher(stops)
    assert matcher.append(text) == released
    assert matcher.matched is not None


def test_nothing_is_released_after_a_match():
    matcher = StopMatcher(["b"])
    assert matcher.append("abc") == "a"
    assert matcher.append("more") == ""
    assert matcher.flush() == ""
