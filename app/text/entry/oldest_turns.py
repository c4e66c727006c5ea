"""Leaves the oldest turns out of a chat that is too long.

    system | user user  assistant  | user  assistant·results  assistant·results  assistant·results
    kept   | a turn: left out whole  the last turn: its question is kept, its oldest steps are left out

A turn is a question and all that follows it; a step is an answer with the results of its calls. An agent may take
hundreds of steps for one question.

A chat that grows would lose a turn with each request, and its prompt would never begin as the one before, whose tokens
are in the cache. So places to cut are a stride apart, and depend on what is in front of them alone: the chat keeps its
cut for a stride.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import accumulate, groupby, takewhile, zip_longest
from typing import Any

from app.text.template.spelled_tokens import strings

Message = dict[str, Any]
_ANY = object()  # stands for every id


def without_oldest(messages: Sequence[Message], stride: int, fits: Callable[[list[Message]], bool]) -> list[Message]:
    """Return the messages or, if they do not fit, the newest of them that do, behind the leading system messages. Pure.

    These, the last question and the last step are kept, whether they fit or not, and no call is kept without its
    results. A stride has at most `stride` characters, or one turn or step that has more. `fits` is called for the
    messages that are returned, and about twice for each doubling of the strides that fit; for none that are more than
    two times as long as these, but the messages as they were given.
    """
    whole = list(messages)
    if fits(whole):
        return whole
    num_systems = sum(1 for _ in takewhile(lambda message: message.get("role") == "system", whole))
    questions = _questions(whole, num_systems)
    last = questions[-1] if questions else range(num_systems, num_systems)
    cuts = _a_stride_apart(_cuts(whole, questions, last, num_systems), whole, num_systems, stride)
    if not cuts:
        return whole

    def kept(number: int) -> list[Message]:
        cut = cuts[number]
        return [*whole[:num_systems], *whole[last.start : min(last.stop, cut)], *whole[cut:]]

    fitting, width = len(cuts) - 1, 1
    if not fits(kept(fitting)):
        return kept(fitting)
    while fitting >= width and fits(kept(fitting - width)):
        fitting, width = fitting - width, width * 2
    first = max(fitting - width + 1, 0)
    return kept(bisect_left(range(fitting), True, lo=first, hi=fitting, key=lambda number: fits(kept(number))))


def _questions(messages: Sequence[Message], start: int) -> list[range]:
    """Return where messages of the user are, from `start` on, each with the system messages beside it."""
    questions, position = [], start
    for is_answer, run in groupby(messages[start:], _is_answer):
        roles = [message.get("role") for message in run]
        if not is_answer and "user" in roles:
            questions.append(range(position, position + len(roles)))
        position += len(roles)
    return questions


def _cuts(messages: Sequence[Message], questions: Sequence[range], last: range, start: int) -> list[int]:
    """Return where what is kept may begin: with each later turn, and behind the last question with each later step."""
    turns = {question.start for question in questions}
    cuts, first_needed = [], len(messages)
    call_of = _calls_of_results(messages)
    for index in range(len(messages) - 1, start, -1):
        first_needed = min(first_needed, call_of.get(index, index))
        is_step = index > last.stop and _is_step(messages[index - 1], messages[index])
        if (index in turns or is_step) and index <= first_needed:
            cuts.append(index)
    return cuts[::-1]


def _calls_of_results(messages: Sequence[Message]) -> dict[int, int]:
    """Return for each result where its call is: the last one with its id, or if there is none, the last one at all."""
    found: dict[int, int] = {}
    latest: dict[object, int] = {}
    for index, message in enumerate(messages):
        for call in message.get("tool_calls") or ():
            latest[call.get("id")] = latest[_ANY] = index
        if message.get("role") == "tool":
            found[index] = latest.get(message.get("tool_call_id"), latest.get(_ANY, index))
    return found


def _a_stride_apart(cuts: Sequence[int], messages: Sequence[Message], start: int, stride: int) -> list[int]:
    """Return the last one of the cuts in each stride."""
    ends = [0, *accumulate(sum(map(len, strings(message))) for message in messages)]
    apart, begin = [], start
    for cut, following in zip_longest(cuts, cuts[1:]):
        if following is None or ends[following] - ends[begin] > stride:
            apart.append(cut)
            begin = cut
    return apart


def _is_answer(message: Message) -> bool:
    return message.get("role") in ("assistant", "tool")


def _is_step(before: Message, message: Message) -> bool:
    return message.get("role") == "assistant" and before.get("role") != "assistant"
