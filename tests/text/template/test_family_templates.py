"""Calls and reasoning in the templates of single families, shortened: what they write is read and accepted."""

from __future__ import annotations

import re

import llguidance
import pytest

from app.text.answer.choose import choose_format, choose_reasoning, is_generic
from app.text.answer.reasoning import STYLES
from app.text.calls.call_grammar import CallGrammar
from app.text.template.chat_template import ChatTemplate, RenderOptions
from tests.text.answer.answers import SCHEMAS, TOOLS, Call, calls_of, parse, text_of
from tests.text.templates import GEMMA_3
from tests.text.toys import toy

# A name on the first line of an assistant's message is its metadata; results are observations. Public copies of the
# template agree: system messages come first, and all tools stand in one of their own.
GLM_4 = """[gMASK]<sop>
{%- if tools %}{{ '<|system|>\\n# Tools' }}{% endif %}
{%- for tool in tools or [] %}
    {{- '\\n\\n## ' ~ tool.function.name ~ '\\n\\n' ~ tool.function | tojson(indent=4) }}
{%- endfor %}
{%- for message in messages if message.role == 'system' %}{{ '<|system|>\\n' ~ message.content }}{% endfor %}
{%- for message in messages if message.role != 'system' %}
    {%- set visible = message['content'].split('</think>')[-1].strip() %}
    {%- if message['role'] == 'assistant' and message.get('metadata', '') %}
        {{- '<|assistant|>' ~ message.metadata ~ '\\n' ~ visible }}
    {%- elif message['role'] in ('user', 'assistant') %}
        {{- '<|' ~ message['role'] ~ '|>\\n' ~ visible }}
    {%- elif message['role'] == 'observation' %}
        {{- '<|observation|>\\n' ~ visible }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"""

SEED_OSS = """{%- if tools %}{{ bos_token ~ 'system\\n' ~ tools | tojson ~ eos_token }}{% endif %}
{%- for message in messages %}
    {{- bos_token ~ message.role ~ '\\n' }}
    {%- if message.reasoning_content %}{{ '<seed:think>' ~ message.reasoning_content ~ '</seed:think>' }}{% endif %}
    {{- message.content or '' }}
    {%- for call in message.tool_calls or [] %}
        {{- '\\n<seed:tool_call>\\n<function=' ~ call.function.name ~ '>\\n' }}
        {%- for key, value in call.function.arguments.items() %}
            {{- '<parameter=' ~ key ~ '>' ~ (value if value is string else value | tojson) ~ '</parameter>\\n' }}
        {%- endfor %}
        {{- '</function>\\n</seed:tool_call>' }}
    {%- endfor %}
    {{- eos_token }}
{%- endfor %}
{%- if add_generation_prompt %}{{ bos_token ~ 'assistant\\n' }}{% endif %}"""

# Without reasoning an answer begins with an empty block of it; the results of calls after each other are one message.
EXAONE_4 = """{%- if tools %}{{ '[|system|]\\n' ~ tools | tojson ~ '[|endofturn|]\\n' }}{% endif %}
{%- for message in messages %}
    {%- set is_next_tool = not loop.last and loop.nextitem.role == 'tool' %}
    {%- if message.role == 'tool' and loop.previtem.role == 'tool' %}{{ '\\n' }}
    {%- else %}{{ '[|' ~ message.role ~ '|]\\n' }}
    {%- endif %}
    {%- if message.role == 'assistant' %}
        {{- '<think>\\n\\n</think>\\n\\n' ~ (message.content or '').split('</think>')[-1] }}
        {%- for call in message.tool_calls or [] %}
            {{- '<tool_call>{"name": "' ~ call.function.name ~ '", "arguments": ' }}
            {{- call.function.arguments | tojson ~ '}</tool_call>' ~ ('' if loop.last else '\\n') }}
        {%- endfor %}
    {%- elif message.role == 'tool' %}{{ '<tool_result>' ~ {'result': message.content} | tojson ~ '</tool_result>' }}
    {%- else %}{{ message.content }}
    {%- endif %}
    {{- '' if message.role == 'tool' and is_next_tool else '[|endofturn|]\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '[|assistant|]\\n<think>\\n' ~ ('' if enable_thinking else '\\n</think>\\n\\n') }}
{%- endif %}"""

MINISTRAL_3 = """{{- bos_token }}
{%- if tools %}{{ '[AVAILABLE_TOOLS]' ~ tools | tojson ~ '[/AVAILABLE_TOOLS]' }}{% endif %}
{%- for message in messages %}
    {%- if message.role == 'user' %}{{ '[INST]' ~ message.content ~ '[/INST]' }}
    {%- elif message.role == 'tool' %}{{ '[TOOL_RESULTS]' ~ message.content ~ '[/TOOL_RESULTS]' }}
    {%- elif message.role == 'assistant' %}
        {%- if message.reasoning_content %}{{ '[THINK]' ~ message.reasoning_content ~ '[/THINK]' }}{% endif %}
        {{- message.content or '' }}
        {%- for call in message.tool_calls or [] %}
            {{- '[TOOL_CALLS]' ~ call.function.name ~ '[ARGS]' ~ call.function.arguments | tojson }}
        {%- endfor %}
        {{- eos_token }}
    {%- endif %}
{%- endfor %}"""

_OLMO_3 = """<|im_start|>system
Write any function calls within <function_calls></function_calls>.<functions>{{ tools | tojson }}</functions><|im_end|>
{%% for message in messages %%}
    {{- '<|im_start|>' ~ ('environment' if message.role == 'tool' else message.role) ~ '\\n' ~ message.content or '' }}
    {%%- if message.tool_calls %%}{{ '<function_calls>' }}
        {%%- for call in message.tool_calls %%}
            {{- call.function.name ~ '(' }}
            {%%- for key, value in call.function.arguments.items() %%}
                {{- key ~ '=' ~ value | tojson ~ ('' if loop.last else ', ') }}
            {%%- endfor %%}
            {{- ')' ~ ('' if loop.last else '\\n') }}
        {%%- endfor %%}
        {{- '</function_calls>' }}
    {%%- endif %%}
    {{- '<|im_end|>\\n' }}
{%%- endfor %%}
{%%- if add_generation_prompt %%}{{ '<|im_start|>assistant\\n%s' }}{%% endif %%}"""
OLMO_3 = _OLMO_3 % ""
OLMO_3_THINK = _OLMO_3 % "<think>"
"""It begins the reasoning, and has no other mark of it."""

CALLS: list[Call] = [("search", {"text": "a b", "count": 3, "is_new": False}), ("a_1", {}), ("get-time", {"rest": [1]})]
USER = {"role": "user", "content": "Hi"}
ENDS = ("<|im_end|>\n", "[|endofturn|]\n", "</s>")
FAMILIES = {
    "glm4_0414": (GLM_4, "think"),
    "qwen3_coder": (SEED_OSS, "seed"),
    "hermes": (EXAONE_4, "think"),
    "mistral": (MINISTRAL_3, "mistral"),
    "olmo3": (OLMO_3, None),
}


def messages_of(calls: list[Call]) -> list[dict[str, object]]:
    """A question, an answer with calls, and their results."""
    written = [
        {"id": f"call{number:05}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for number, (name, arguments) in enumerate(calls)
    ]
    results = [{"role": "tool", "tool_call_id": call["id"], "content": f"R{i}"} for i, call in enumerate(written)]
    return [USER, {"role": "assistant", "content": None, "tool_calls": written}, *results]


def answer_of(source: str, calls: list[Call]) -> str:
    """What the template writes for an answer with these calls."""
    template = ChatTemplate(source, toy("byte_level")[0])
    prompt = template.render_text([USER], RenderOptions(tools=TOOLS))
    text = template.render_text(messages_of(calls)[:2], RenderOptions(add_generation_prompt=False, tools=TOOLS))
    assert text.startswith(prompt)
    text = text.removeprefix(prompt)
    for end in ENDS:
        text = text.removesuffix(end)
    return text


@pytest.mark.parametrize("name", FAMILIES)
def test_written_calls_are_read_and_accepted(name: str):
    source, _ = FAMILIES[name]
    row = choose_format(source)
    assert row is not None and row.name == name
    text = answer_of(source, CALLS)
    events = parse(row.syntax.machine(SCHEMAS), [text])
    assert (calls_of(events), text_of(events)) == (CALLS, "")
    assert parse(row.syntax.machine(SCHEMAS), list(text)) == events
    vocabulary = llguidance.LLTokenizer(toy("byte_level")[1].to_str())
    grammar = CallGrammar(row.syntax, TOOLS, {}).required(is_parallel=True)
    matcher = llguidance.LLMatcher(vocabulary, llguidance.LLMatcher.grammar_from_lark(grammar), log_level=0)
    parts = re.split("(?<=<)", text.strip())  # so that no mark is one of the vocabulary's special tokens
    token_ids = [token_id for part in parts for token_id in vocabulary.tokenize_str(part)]
    assert matcher.try_consume_tokens(token_ids) == len(token_ids)
    assert matcher.is_accepting()


@pytest.mark.parametrize("name", FAMILIES)
def test_the_prompt_has_calls_and_their_results(name: str):
    template = ChatTemplate(FAMILIES[name][0], toy("byte_level")[0])
    prompt = template.render_text(messages_of(CALLS), RenderOptions(tools=TOOLS))
    assert all(f"R{number}" in prompt for number in range(len(CALLS)))
    assert "a b" in prompt and prompt.count("get-time") > 1


@pytest.mark.parametrize("name", FAMILIES)
def test_the_marks_of_reasoning_are_told_from_the_template(name: str):
    source, wanted = FAMILIES[name]
    style = choose_reasoning(source)
    assert (None if style is None else style.name) == wanted


def test_a_template_that_begins_the_reasoning_need_not_end_it():
    style = choose_reasoning(OLMO_3_THINK)
    assert style is STYLES["think"]
    prompt = ChatTemplate(OLMO_3_THINK, toy("byte_level")[0]).render_text([USER], RenderOptions(tools=TOOLS))
    assert style.is_inside(prompt)


def test_gemma_has_no_syntax_of_its_own():
    """Our text asks it for calls, in the generic one."""
    row = choose_format(GEMMA_3)
    assert is_generic(GEMMA_3) and row is not None and row.name == "hermes"
    assert choose_reasoning(GEMMA_3) is None
