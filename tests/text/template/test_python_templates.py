"""Calls as templates of the families that write Python: their parser reads them, their grammar accepts them."""

import llguidance
import pytest

from app.text.answer.choose import choose_format
from app.text.calls.call_grammar import CallGrammar
from app.text.template.chat_template import ChatTemplate, RenderOptions
from tests.text.answer.answers import SCHEMAS, TOOLS, calls_of, parse
from tests.text.templates import LFM2, PYTHONIC
from tests.text.toys import toy

CALLS = [("search", {"text": "a b", "count": 3, "is_new": False}), ("a_1", {}), ("get-time", {"rest": [1, "x"]})]
USER = {"role": "user", "content": "Hi"}


def answer_of(source: str, calls: list) -> str:
    """What the template writes for an answer with these calls."""
    template = ChatTemplate(source, toy("byte_level")[0])
    written = [{"id": "c", "type": "function", "function": {"name": n, "arguments": a}} for n, a in calls]
    messages = [USER, {"role": "assistant", "content": None, "tool_calls": written}]
    prompt = template.render_text([USER], RenderOptions(tools=TOOLS))
    text = template.render_text(messages, RenderOptions(add_generation_prompt=False, tools=TOOLS))
    assert text.startswith(prompt)
    return text.removeprefix(prompt).removesuffix("<|eot_id|>")


@pytest.mark.parametrize(("source", "name"), [(PYTHONIC, "pythonic"), (LFM2, "lfm2")])
def test_written_calls_are_read_and_accepted(source, name):
    row = choose_format(source)
    assert row is not None and row.name == name
    events = parse(row.syntax.machine(SCHEMAS), [answer_of(source, CALLS)])
    assert calls_of(events) == CALLS
    vocabulary = llguidance.LLTokenizer(toy("byte_level")[1].to_str())
    grammar = CallGrammar(row.syntax, TOOLS, {}).required(is_parallel=True)
    matcher = llguidance.LLMatcher(vocabulary, llguidance.LLMatcher.grammar_from_lark(grammar), log_level=0)
    token_ids = vocabulary.tokenize_str(answer_of(source, CALLS[:2]))
    assert matcher.try_consume_tokens(token_ids) == len(token_ids)
    assert matcher.is_accepting()


def test_a_string_with_a_quote_that_the_template_does_not_escape():
    calls = [("search", {"text": "it's 'so', he said", "count": 1})]
    row = choose_format(LFM2)
    assert row is not None
    text = answer_of(LFM2, [("search", {"text": "it's so", "count": 1})])
    assert "'it's so'" in text
    assert calls_of(parse(row.syntax.machine(SCHEMAS), [text])) == [("search", {"text": "it's so", "count": 1})]
    text = answer_of(PYTHONIC, calls)  # in the other kind of quotes it is a literal of Python
    assert calls_of(parse(row.syntax.machine(SCHEMAS), [f"<|tool_call_start|>{text}<|tool_call_end|>"])) == calls
