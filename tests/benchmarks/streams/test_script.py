"""Scripted tokens contain their stream, number and time; seeds contain the stream and its speed."""

import pytest

from benchmarks.streams.script import (
    MAX_STREAMS,
    TOKEN_CHARS,
    Token,
    age_s,
    prefix_of,
    read_seed,
    read_token,
    seed_of,
    stamp_of,
)


def test_a_token_is_parsed():
    text = f"{prefix_of(42)}{31:05x}{stamp_of(5000.25):08x}"
    assert len(text) == TOKEN_CHARS
    assert read_token(text) == Token(" 002a", 31, stamp_of(5000.25))


@pytest.mark.parametrize("text", ["", " 002a0001f", " 002a0001g00000000", "a perfectly normal"])
def test_other_texts_are_not_tokens(text):
    assert read_token(text) is None


def test_ages_are_right_when_the_stamp_wraps_around():
    before = 2**32 / 1e6 - 0.5
    assert age_s(stamp_of(before), stamp_of(before + 2)) == pytest.approx(2, abs=1e-5)
    assert age_s(stamp_of(7), stamp_of(7)) == 0


@pytest.mark.parametrize("stream", [0, 1, MAX_STREAMS - 1])
@pytest.mark.parametrize("speed", [1, 20])
def test_a_seed_contains_the_stream_and_its_speed(stream, speed):
    assert read_seed(seed_of(stream, speed)) == (stream, speed)


def test_any_other_seed_means_speed_1():
    assert read_seed(7) == (7, 1)
