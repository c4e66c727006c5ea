"""What a connection remembers of its responses: which, for how long, and in how much memory."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.api.http.byte_budget import ByteBudget
from app.api.responses import response_memory
from app.api.responses.output_items import AnswerText, OutputMessage
from app.api.responses.response_memory import MAX_RESPONSES, RESPONSE_BYTES, ResponseMemory
from app.contract.errors import InvalidValue, PreviousResponseNotFound


def item(text: str) -> dict[str, Any]:
    """An item of an input."""
    return {"role": "user", "content": text}


def output(text: str) -> OutputMessage:
    """An item of an output."""
    return OutputMessage(f"msg_{text}", "completed", [AnswerText(text)])


def remember(memory: ResponseMemory, response_id: str, text: str, previous: str | None = None) -> None:
    """Answer a request with one item, as the socket does."""
    request = memory.next()
    before = [] if previous is None else [*request.items_of(previous)]
    request.begin(response_id, [*before, item(text)])
    request.end([output(text)])


def texts_of(memory: ResponseMemory, response_id: str) -> list[str]:
    """The texts of a conversation."""
    found: list[Any] = [*memory.next().items_of(response_id)]
    return [each["content"] if isinstance(each["content"], str) else each["content"][0]["text"] for each in found]


def test_a_conversation_is_all_that_was_said():
    memory = ResponseMemory(ByteBudget(10_000))
    remember(memory, "r1", "a")
    remember(memory, "r2", "b", "r1")
    remember(memory, "r3", "c", "r1")
    assert texts_of(memory, "r2") == ["a", "a", "b", "b"]
    assert texts_of(memory, "r3") == ["a", "a", "c", "c"]
    assert [*memory.next().items_of("r1")][1]["id"] == "msg_a"


def test_an_unknown_response_is_told_with_what_to_do():
    with pytest.raises(PreviousResponseNotFound, match=r"not found: .*; send the whole conversation") as error:
        ResponseMemory(ByteBudget(9)).next().items_of("r")
    assert error.value.param == "previous_response_id"


class Kept:
    """A response that is kept elsewhere, of two items."""

    def num_bytes_of(self, response_id: str) -> int:
        """Its bytes."""
        return 7

    def items_of(self, response_id: str) -> list[object]:
        """Its items."""
        assert response_id == "kept"
        return [item("x"), item("y")]

    def begin(self, response_id: str, items: object) -> None:
        """Fail: the memory has what is begun."""
        raise AssertionError


def test_what_is_not_remembered_may_be_kept_and_is_then_remembered_as_a_whole():
    memory = ResponseMemory(ByteBudget(10_000))
    request = memory.next(Kept())
    assert request.num_bytes_of("kept") == 7
    request.begin("r1", [*request.items_of("kept"), item("a")])
    request.end([output("a")])
    assert texts_of(memory, "r1") == ["x", "y", "a", "a"]
    again = memory.next(Kept())
    again.begin("r2", [*again.items_of("r1"), item("b")])
    again.end([output("b")])
    assert texts_of(memory, "r2") == ["x", "y", "a", "a", "b", "b"]


def test_the_last_16_are_remembered_and_what_they_have_gone_on_from():
    memory = ResponseMemory(ByteBudget(100_000))
    remember(memory, "r0", "0")
    for number in range(1, MAX_RESPONSES + 2):
        remember(memory, f"r{number}", str(number), f"r{number - 1}")
    assert len(memory) == MAX_RESPONSES
    assert memory.find("r1") is None
    assert texts_of(memory, "r17")[:4] == ["0", "0", "1", "1"]


def test_a_response_that_has_not_ended_is_not_remembered():
    memory = ResponseMemory(ByteBudget(1000))
    memory.next().begin("r1", [item("a")])
    assert len(memory) == 0


def test_what_is_too_much_for_the_budget_is_not_remembered():
    budget = ByteBudget(400 + RESPONSE_BYTES)
    memory, other = ResponseMemory(budget), ResponseMemory(budget)
    remember(memory, "r1", "a" * 40)
    before = budget.num_bytes
    remember(other, "r2", "b" * 150)
    assert (len(other), budget.num_bytes) == (0, before)
    remember(memory, "r3", "c" * 150)
    assert texts_of(memory, "r1") == ["a" * 40] * 2
    memory.clear()
    memory.clear()
    assert budget.num_bytes == 0
    remember(other, "r2", "b" * 60)
    assert len(other) == 1


def test_responses_without_items_count_too():
    """Else a connection would remember millions of them, each after the other, within any budget."""
    budget = ByteBudget(10 * RESPONSE_BYTES)
    memory, last = ResponseMemory(budget), None
    for number in range(10):
        request = memory.next()
        if last is not None:
            request.items_of(last)
        last = f"r{number}"
        request.begin(last, [])
        request.end([])
    assert len(memory) == 9
    assert memory.find("r9") is None


def test_a_conversation_has_a_bound_of_responses_and_of_bytes(monkeypatch):
    memory = ResponseMemory(ByteBudget(10_000))
    for number in range(4):
        remember(memory, f"r{number}", "a", f"r{number - 1}" if number else None)
    num_bytes = sum(len(each.items) for each in memory.find("r3").conversation())
    bounds = (("MAX_HOPS", 4, PreviousResponseNotFound), ("MAX_CONVERSATION_BYTES", num_bytes, InvalidValue))
    for name, bound, kind in bounds:
        with monkeypatch.context() as patch:
            patch.setattr(response_memory, name, bound)
            assert len(texts_of(memory, "r3")) == 8
            patch.setattr(response_memory, name, bound - 1)
            with pytest.raises(kind, match="send") as error:
                memory.next().items_of("r3")
            assert error.value.param == "previous_response_id"


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(-1, 20), st.integers(0, 200)), max_size=60))
def test_the_budget_is_what_all_connections_remember(steps):
    """Every response that can still be gone on from counts once, with all that it goes on from."""
    budget = ByteBudget(6000)
    memories = [ResponseMemory(budget), ResponseMemory(budget)]
    ids: tuple[list[str], list[str]] = ([], [])
    for number, (which, back, size) in enumerate(steps):
        memory, known = memories[which], ids[which]
        previous = known[-1 - back] if 0 <= back < len(known) else None
        try:
            remember(memory, f"r{number}", "x" * size, previous)
        except PreviousResponseNotFound:
            continue
        known.append(f"r{number}")
        assert budget.num_bytes == sum(map(num_reachable_bytes, memories)) <= 6000
    for memory in memories:
        memory.clear()
    assert budget.num_bytes == 0


def num_reachable_bytes(memory: ResponseMemory) -> int:
    """The bytes of all responses that a memory reaches."""
    seen = {}
    for response in memory._responses.values():
        found = response
        while found is not None:
            seen[id(found)] = found.num_bytes
            found = found.previous
    return sum(seen.values())
