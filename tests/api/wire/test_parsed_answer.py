"""Answers that are parsed: their reasoning, and the counts and ids of what is in them."""

from itertools import groupby

import pytest
from tokenizers import AddedToken

from app.api.wire.parsed_answer import ParsedAnswer
from app.contract.events import ChoiceEnd, FinishReason, TokenDelta
from app.text.answer.answer_format import AnswerFormat
from app.text.answer.answer_plan import AnswerPlan
from app.text.answer.reasoning_start import reasoning_start
from app.text.calls.tool_schemas import ToolSchemas
from app.text.entry.frontend import TextFrontend
from app.text.reading.answer_events import Arguments, CallBegin, CallEnd, Reasoning, Text
from app.text.tokens.tokenizer import Tokenizer
from tests.text.toys import byte_level

THINKING = "{% for m in messages %}{{ m.content }}{% endfor %}<think></think>"
SCHEMAS = ToolSchemas([{"function": {"name": "f"}}])


def text_of(*, special: bool) -> TextFrontend:
    """A text frontend whose marks of reasoning are tokens, special ones or not."""
    backend = byte_level()
    tokens = [AddedToken(mark, normalized=False, special=special) for mark in ("<think>", "</think>")]
    backend.add_special_tokens(tokens) if special else backend.add_tokens(tokens)
    tokenizer = Tokenizer(backend, {"eos_token": "</s>"})
    return TextFrontend(tokenizer, None, answers=AnswerFormat.of_template(THINKING, tokenizer.special_tokens))


def answer_of(
    text: TextFrontend, prompt: str, written: str, *, size: int = 1, fields: tuple[str, ...] = ("reasoning_content",)
) -> ParsedAnswer:
    """The answer that is written after a prompt, in deltas of `size` tokens, as the engine sends it."""
    tokenizer = text.tokenizer
    start = reasoning_start(text.answers.reasoning, tokenizer.encode(prompt), tokenizer)
    plan = AnswerPlan.of(text.answers, None, start)
    assert plan is not None
    answer = ParsedAnswer(plan, 1, tokenizer.token_bytes, has_reasoning=bool(fields))
    detokenizer = tokenizer.new_detokenizer(text.answers.shown_token_ids(False))
    ids = tokenizer.encode(written, add_special_tokens=False)
    answer.seen = []
    for first in range(0, len(ids), size):
        piece = tuple(ids[first : first + size])
        delta = TokenDelta("r", 0, first + 1, piece, "".join(map(detokenizer.append, piece)))
        answer.seen.append(answer.feed(delta))
    answer.seen.append(answer.finish(0))
    return answer


@pytest.mark.parametrize("size", [1, 3, 100])
@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize(
    ("prompt", "written", "reasoning", "text"),
    [
        ("Hi", "<think>\none two\n</think>\n\nthree", "one two", "three"),
        ("Hi<think>\n", "one two\n</think>\n\nthree", "one two", "three"),
        ("Hi<think>\n", "one two", "one two", ""),
        ("Hi<think></think>", "three", "", "three"),
        ("Hi", "three <think> four", "", None),
    ],
)
def test_reasoning_is_separated_and_counted(size, special, prompt, written, reasoning, text):
    frontend = text_of(special=special)
    answer = answer_of(frontend, prompt, written, size=size)
    assert "".join(one.reasoning for one in answer.seen) == reasoning
    if text is not None:
        assert "".join(one.text for one in answer.seen) == text
    block = written.partition("</think>")[0] + ("</think>" if "</think>" in written else "")
    expected = len(frontend.tokenizer.encode(block, add_special_tokens=False)) if reasoning else 0
    assert answer.reasoning_tokens == expected


def test_an_answer_without_its_reasoning_has_the_same_text_on_every_transport():
    answer = answer_of(text_of(special=False), "Hi", "<think>one</think>two", fields=())
    assert "".join(one.text for one in answer.seen) == "two"
    assert "".join(one.reasoning for one in answer.seen) == ""
    assert answer.reasoning_tokens


def no_bytes(token_id: int) -> bytes:
    """The bytes of a token, where none are counted."""
    return b""


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_the_order_of_text_and_calls_stays_streamed_and_whole(size):
    call = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
    written = f"<think>Hm.</think>One{call}two{call}"
    plan = AnswerPlan(AnswerFormat.of_template(THINKING + "<tool_call>", {}), SCHEMAS)
    parts = [written[start : start + size] for start in range(0, len(written), size)]
    deltas = [TokenDelta("r", 0, number, (number,), part) for number, part in enumerate(parts, 1)]
    answer = ParsedAnswer(plan, 1, no_bytes)
    streamed = [*map(answer.feed, deltas), answer.finish(0)]
    kept = ParsedAnswer(plan, 1, no_bytes)
    for delta in deltas:
        kept.keep(delta)
    whole = kept.whole(0)
    kinds = [type(event) for event in whole.events]
    assert kinds == [Reasoning, Text, CallBegin, Arguments, CallEnd, Text, CallBegin, Arguments, CallEnd]
    assert kinds == [kind for kind, _ in groupby(type(event) for one in streamed for event in one.events)]
    assert whole.text == "".join(one.text for one in streamed)
    assert whole.reasoning == "".join(one.reasoning for one in streamed)


def test_only_a_stop_becomes_tool_calls():
    plan = AnswerPlan(AnswerFormat.of_template("", {}), SCHEMAS)
    answer = ParsedAnswer(plan, 2, no_bytes)
    answer.feed(TokenDelta("r", 0, 1, (1,), '<tool_call>{"name": "f"}'))
    assert answer.end_of(0, ChoiceEnd(FinishReason.STOP)).reason is FinishReason.TOOL_CALLS
    assert answer.end_of(0, ChoiceEnd(FinishReason.LENGTH)).reason is FinishReason.LENGTH
    assert answer.end_of(0, ChoiceEnd(FinishReason.CANCELLED)).reason is FinishReason.CANCELLED
    assert answer.end_of(1, ChoiceEnd(FinishReason.STOP)).reason is FinishReason.STOP
    answer.feed(TokenDelta("r", 0, 2, (2,), '<tool_call>{"name": "f", "arguments": {"a": 1'))
    answer.finish(0)
    assert answer.end_of(0, ChoiceEnd(FinishReason.STOP)).reason is FinishReason.STOP, "a call breaks off"
    assert answer.end_of(0, ChoiceEnd(FinishReason.LENGTH)).reason is FinishReason.LENGTH
