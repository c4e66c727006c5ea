"""Structured outputs and required calls of a model whose marks of reasoning are several tokens, as Granite 3.3."""

import json

import pytest

from app.api.body.parse_chat import parse_chat
from app.contract.errors import UnsupportedParameter
from app.contract.grammar import StructuredOutputs
from app.contract.sampling_params import SamplingParams
from app.llm import LLM
from tests.api.serving import client_of, make_app, parse, raw, with_grammars
from tests.text.templates import GRANITE

USER = {"role": "user", "content": "Hi"}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}
         for name in ("now", "here")]  # fmt: skip
NAMED = {"type": "function", "function": {"name": "here"}}
FIELDS = [
    {"response_format": {"type": "json_object"}},
    {"regex": "a{3}"},
    {"tools": TOOLS, "tool_choice": "required"},
    {"tools": TOOLS, "tool_choice": NAMED},
]
OPENED = GRANITE.replace("'assistant: '", "'assistant: <think>\\n'")


@pytest.fixture
def template(tmp_path):
    """A file with the template."""
    (tmp_path / "granite.jinja").write_text(GRANITE)
    return tmp_path / "granite.jinja"


async def context_of(template):
    context = with_grammars(await make_app(chat_template=str(template))).state.context
    assert context.text.answers.reasoning.name == "think"
    return context


@pytest.mark.parametrize("fields", FIELDS, ids=str)
@pytest.mark.parametrize(
    ("kwargs", "is_asked"),
    [({}, False), ({"thinking": False}, False), ({"enable_thinking": False}, False),
     ({"thinking": True}, True), ({"enable_thinking": True}, True)],
)  # fmt: skip
async def test_an_answer_reasons_first_only_where_the_template_asks_for_it(template, fields, kwargs, is_asked):
    body = {"messages": [USER], "chat_template_kwargs": kwargs, **fields}
    parsed = await parse(raw(body), await context_of(template), parse_chat)
    grammar = parsed.request.grammar
    assert bool(grammar.block) is grammar.follows_reasoning is is_asked
    assert parsed.request.reasoning is None


async def test_a_block_that_the_prompt_begins_is_completed_first(template):
    template.write_text(OPENED)
    parsed = await parse(raw({"messages": [USER], **FIELDS[0]}), await context_of(template), parse_chat)
    assert parsed.request.grammar.block.startswith("block: inside\n")


async def test_a_budget_is_rejected_where_nothing_can_count_it(template):
    body = {"messages": [USER], "thinking_token_budget": 5}
    context = await context_of(template)
    with pytest.raises(UnsupportedParameter, match="Leave it out"):
        await parse(raw(body | {"chat_template_kwargs": {"thinking": True}}), context, parse_chat)
    assert (await parse(raw(body), context, parse_chat)).request.grammar is None


async def test_the_capabilities_are_those_of_the_model(template):
    async with client_of(await make_app(chat_template=str(template))) as client:
        model = (await client.get("/v1/models")).json()["data"][0]
    assert model["capabilities"]["reasoning"] and model["capabilities"]["tools"]


@pytest.fixture
def llm(template):
    loaded = LLM("guide", chat_template=str(template), max_model_len=1024, num_kv_blocks=64)
    yield loaded
    loaded.close()


@pytest.mark.parametrize(
    ("kwargs", "is_asked"),
    [(None, False), ({"thinking": False}, False), ({"thinking": True}, True), ({"enable_thinking": True}, True)],
)
def test_an_answer_offline_reasons_first_only_where_the_template_asks_for_it(llm, kwargs, is_asked):
    likely = {llm.tokenizer.encode("<", add_special_tokens=False)[0]: 100.0}
    asked = SamplingParams(max_tokens=20, logit_bias=likely, structured_outputs=StructuredOutputs(regex="a{3}"))
    [result] = llm.chat([USER], asked, use_tqdm=False, chat_template_kwargs=kwargs)
    [output] = result.outputs
    assert (output.text, output.reasoning != "") == (("", True) if is_asked else ("aaa", False))


@pytest.mark.parametrize(
    ("begun", "is_inside"),
    [("<think> They say hello.", True), ("<think> Hello. </think> Well", False), ("Well", False)],
)
@pytest.mark.parametrize("as_parts", [False, True])
def test_an_answer_offline_goes_on_with_the_reasoning_of_the_message_that_it_continues(llm, begun, is_inside, as_parts):
    content = [{"type": "text", "text": begun}] if as_parts else begun
    [result] = llm.chat(
        [USER, {"role": "assistant", "content": content}],
        SamplingParams(max_tokens=8, logit_bias={llm.tokenizer.encode("a", add_special_tokens=False)[0]: 100.0}),
        use_tqdm=False,
        add_generation_prompt=False,
        continue_final_message=True,
    )
    [output] = result.outputs
    assert (bool(output.reasoning), bool(output.text)) == (is_inside, not is_inside)


def test_answers_offline_satisfy_what_they_must_be(llm):
    """The embedded model writes one; what it would write after a thought is tested with the grammar alone."""
    wanted = SamplingParams(max_tokens=200, seed=1)
    [required] = llm.chat([USER], wanted, use_tqdm=False, tools=TOOLS, tool_choice="required")
    [output] = required.outputs
    assert output.finish_reason == "tool_calls" and output.reasoning == output.text == ""
    assert all(json.loads(call.arguments) == {} for call in output.tool_calls)
