"""Calls as real templates write them, which come with the source of llama.cpp; they are not in the repository.

What a template writes for calls in a conversation is what its model learned to write: the parser of its family reads
the same calls, and the grammar of required calls accepts it.
"""

import os
import re
from pathlib import Path

import llguidance
import pytest

from app.contract.errors import InvalidValue
from app.text.answer.choose import choose_format
from app.text.calls.call_grammar import CallGrammar
from app.text.calls.tool_schemas import ToolSchemas
from app.text.template.chat_template import ChatTemplate, RenderOptions
from tests.text.answer.answers import calls_of, parse, text_of
from tests.text.toys import toy

SOURCE = Path(os.environ.get("QUIRE_LLAMA_CPP", "nowhere")) / "models/templates"
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not SOURCE.is_dir(), reason="needs llama.cpp's source (QUIRE_LLAMA_CPP)"),
]
FILES = sorted(SOURCE.glob("*.jinja"))
USER = {"role": "user", "content": "Hi"}
PROPERTIES = {name: {"type": kind, "description": "An argument."} for name, kind in (
    ("text", "string"), ("count", "integer"), ("is_new", "boolean"))}  # fmt: skip
TOOLS = [{"type": "function", "function": {"name": name, "description": "A tool.", "parameters": {
    "type": "object", "properties": PROPERTIES, "required": []}}} for name in ("search", "a_1")]  # fmt: skip
CALLS = [("search", {"text": "a b", "count": 3}), ("a_1", {"is_new": True})]
# These write the content alone.
WITHOUT_CALLS = ("ibm-granite-granite-3.3-2B-Instruct", "LFM2-8B-A1B", "LFM2.5-Instruct")
# These reject a system message, or append to a list, which the sandbox forbids, as that of transformers does.
REJECTED = {"google-gemma-2-2b-it": "System role not supported"} | dict.fromkeys(
    ("Kimi-K2-Instruct", "Kimi-K2-Thinking"), "'append' of 'list' object is unsafe"
)
ENDS = (
    "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "</s>", "<｜end▁of▁sentence｜>", "<seed:eos>", "<sep>", "<|end|>",
    "<|end_of_text|>", "</assistant>", "<end_of_sentence>", "<|role_end|>", "<SPECIAL_12>", "[e~[",
)  # fmt: skip


def conversation(num_calls: int) -> list[dict[str, object]]:
    calls = [
        {"id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for number, (name, arguments) in enumerate(CALLS[:num_calls])
    ]
    results = [
        {"role": "tool", "tool_call_id": call["id"], "name": call["function"]["name"], "content": f"R{number}"}
        for number, call in enumerate(calls)
    ]
    return [USER, {"role": "assistant", "content": None, "tool_calls": calls}, *results]


def answer_of(template: ChatTemplate, num_calls: int) -> str:
    """What a template writes behind the generation prompt for an answer with calls."""
    before = template.render_text([USER], RenderOptions(tools=TOOLS))
    after = template.render_text(conversation(num_calls)[:2], RenderOptions(add_generation_prompt=False, tools=TOOLS))
    size = next(
        (place for place, (one, other) in enumerate(zip(before, after, strict=False)) if one != other), len(before)
    )
    mark = after.rfind("<", 0, size)
    if mark >= 0 and ">" not in after[mark:size] and size - mark < 30:
        size = mark  # both go on with a mark that begins alike
    return re.sub(r"^\s*(<think>)?\s*</think>", "", after[size:])


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_written_calls_are_read_and_accepted(file):
    source = file.read_text("utf-8")
    row = choose_format(source)
    if row is None or file.stem in WITHOUT_CALLS:
        pytest.skip("no row yet, or no calls")
    tokenizer, backend = toy("byte_level")
    template = ChatTemplate(source, tokenizer)
    if file.stem in REJECTED:
        with pytest.raises(InvalidValue, match=REJECTED[file.stem]):
            answer_of(template, 1)
        return
    num_calls = 1 if row.name == "llama_json" else 2  # these templates reject several
    text = answer_of(template, num_calls)
    events = parse(row.syntax.machine(ToolSchemas(TOOLS)), [text])
    assert calls_of(events) == CALLS[:num_calls]
    assert re.sub("|".join(map(re.escape, ENDS)), "", text_of(events)).strip() in ("", "<｜Assistant｜>")
    for end in ENDS:
        text = text.split(end)[0]
    vocabulary = llguidance.LLTokenizer(backend.to_str())
    grammar = CallGrammar(row.syntax, TOOLS, {}).required(is_parallel=True)
    matcher = llguidance.LLMatcher(vocabulary, llguidance.LLMatcher.grammar_from_lark(grammar), log_level=0)
    token_ids = vocabulary.tokenize_str(text.strip())
    assert matcher.try_consume_tokens(token_ids) == len(token_ids)
    assert matcher.is_accepting()
    prompt = template.render_text(conversation(num_calls), RenderOptions(tools=TOOLS))
    assert all(f"R{number}" in prompt for number in range(num_calls))
    assert "search" in prompt and "An argument." in prompt
