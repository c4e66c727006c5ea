"""What a client was told: numbers are checked, and differences from the undisturbed answer are named."""

from typing import Any

import pytest

from benchmarks.resuming.told import Told, WrongAnswer


def chunk(text: str, after: str | None = None, index: int = 0, **fields: Any) -> dict[str, Any]:
    choice = {"index": index, "delta": {"content": text}, "finish_reason": None, **fields}
    return {"choices": [choice], **({} if after is None else {"after": after})}


def delta(n: int, x: str, k: int = 1, **fields: Any) -> dict[str, Any]:
    return {"t": "delta", "i": 0, "n": n, "k": k, "x": x, **fields}


def told_of(*frames: dict[str, Any]) -> Told:
    told = Told.nothing(1)
    for frame in frames:
        told.take_frame(frame)
    return told


FINISH = {"t": "finish", "i": 0, "finish_reason": "stop"}
DONE = {"t": "done", "usage": {"completion_tokens": 3}}
WHOLE = told_of(delta(1, "a"), delta(2, "bc", k=2), FINISH, DONE)


def test_both_transports_tell_the_same():
    told = Told.nothing(1)
    told.take_chunk(chunk("a", "1"))
    told.take_chunk(chunk("bc", "3"))
    told.take_chunk(chunk("", "3", finish_reason="stop"))
    told.take_chunk({"choices": [], "usage": {"completion_tokens": 3}})
    assert told.difference(WHOLE) == "" and told.positions == [3]


def test_a_token_that_comes_twice_is_found():
    told = Told.nothing(2)
    told.take_chunk(chunk("a", "0.4", 1))
    with pytest.raises(WrongAnswer, match="choice 1 was told token 4 again behind 4"):
        told.take_chunk(chunk("b", "0.4", 1))
    with pytest.raises(WrongAnswer, match="token 1 behind 1"):
        told_of(delta(1, "a"), delta(1, "a"))


def test_a_token_that_is_left_out_is_found():
    with pytest.raises(WrongAnswer, match="token 3 behind 1"):
        told_of(delta(1, "a"), delta(3, "c"))


@pytest.mark.parametrize(
    ("frames", "difference"),
    [
        (
            (delta(1, "a"), delta(2, "bd", k=2), FINISH, DONE),
            "choice 0 has another content: at 2 'abd' instead of 'abc'",
        ),
        ((delta(1, "a"), delta(2, "bc", k=2), {**FINISH, "finish_reason": "length"}, DONE), "choice 0 has another end"),
        ((delta(1, "a"), delta(2, "bc", k=2), FINISH, {**DONE, "usage": {"completion_tokens": 4}}), "it has 4 tokens"),
    ],
)
def test_what_differs_is_named(frames, difference):
    assert difference in told_of(*frames).difference(WHOLE)


def test_a_beginning_is_told_from_another_answer():
    assert told_of(delta(1, "a")).begins(WHOLE) and Told.nothing(1).begins(WHOLE) and WHOLE.begins(WHOLE)
    in_two_chunks = Told.nothing(1)
    in_two_chunks.take_chunk(chunk("ab"))
    in_two_chunks.take_chunk(chunk("c", finish_reason="stop"))
    assert in_two_chunks.positions == [2] and in_two_chunks.begins(WHOLE)
    assert not told_of(delta(1, "b")).begins(WHOLE)


def test_calls_are_joined():
    told = told_of(delta(1, "", tool=[{"k": 0, "id": "x", "name": "f"}]), delta(2, "", tool=[{"k": 0, "a": "{}"}]))
    assert told.choices[0].calls == [["f", "{}"]]


def test_an_error_is_no_answer():
    with pytest.raises(WrongAnswer, match="it broke"):
        told_of({"t": "error", "message": "it broke"})
    with pytest.raises(WrongAnswer, match="it broke"):
        Told.nothing(1).take_chunk({"error": {"message": "it broke"}})
