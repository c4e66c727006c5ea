"""From a body of the Messages API to a request of the engine."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.api.anthropic.parse_message import SAMPLE_CHARS, parse_count, parse_message
from app.api.body import parse_request
from app.api.body.parse_chat import MAX_MESSAGES
from app.api.http.accounts import Sender
from app.contract.errors import ContextLengthExceeded, InvalidValue, KVCapacityExceeded, ModelNotFound, RequestError
from app.text.answer.reasoning import ReasoningStyle
from app.text.template.chat_template import ChatTemplate
from tests.api.anthropic.messages import BODY, CITY, COUNT, PATH, TOOLS, USER, parsed, prompt_of, whole
from tests.api.serving import client_of, make_app, parse, raw, with_grammars
from tests.cases import examples
from tests.fakes import MODEL_INFO, FakeEngine, Script
from tests.text.templates import GRANITE


@pytest.fixture
async def app():
    return await make_app(FakeEngine())


async def count(app, **fields):
    context = app.state.context
    body = raw({"messages": [USER]} | fields)
    return await parse_request.parse(body, context, parse_count, Sender())


async def test_the_fields_of_sampling_reach_the_request(app):
    fields = {"temperature": 0.5, "top_p": 0.25, "top_k": 7, "stop_sequences": ["END", "\n\n"], "max_tokens": 9}
    params = (await parsed(app, **fields)).request.params
    assert (params.temperature, params.top_p, params.top_k, params.max_tokens) == (0.5, 0.25, 7, 9)
    assert params.stop_strings == ("END", "\n\n")
    assert not (await parsed(app, stop_sequences=[])).request.params.stop_strings


async def test_quires_own_fields_reach_the_request(app):
    fields = {"seed": 7, "priority": -3, "cache_salt": "mine", "queue_timeout": 2, "timeout": 7.5}
    request = (await parsed(app, **fields, repetition_stop=True)).request
    assert request.params.repetition_stop
    assert not (await parsed(app)).request.params.repetition_stop
    assert (request.priority, request.cache_salt) == (-3, "mine")
    assert request.start_deadline == request.arrival_time + 2
    assert request.deadline == request.arrival_time + 7.5


async def test_ids_are_random(app):
    first, second = [(await parsed(app)).request.id for _ in range(2)]
    assert first != second and first.startswith("msg_") and len(first) == 36


@pytest.mark.parametrize("given_tokens", [32_000, 128_000, 10**18])
async def test_a_limit_beyond_the_context_is_lowered(app, given_tokens):
    request = await parsed(app, max_tokens=given_tokens)
    left = MODEL_INFO.max_model_len - len(request.request.prompt_token_ids)
    assert request.request.params.max_tokens == left
    assert request.asked.is_lowered
    assert not (await parsed(app, max_tokens=left)).asked.is_lowered


async def test_a_limit_beyond_the_kv_cache_is_lowered():
    engine = FakeEngine()
    engine.model_info = lambda: replace(MODEL_INFO, kv_capacity_tokens=64)
    request = await parsed(await make_app(engine), max_tokens=999)
    assert request.request.params.max_tokens == 64 - len(request.request.prompt_token_ids) + 1
    assert request.asked.is_lowered


async def test_an_answer_that_fills_the_context_says_so():
    app = await make_app(FakeEngine(Script()))
    assert (await whole(app, max_tokens=10**6))["stop_reason"] == "model_context_window_exceeded"
    assert (await whole(app, max_tokens=3))["stop_reason"] == "max_tokens"


async def test_a_limit_of_0_computes_the_prompt_alone(app):
    request = await parsed(app, max_tokens=0)
    assert request.request.is_prompt_only and not request.asked.is_lowered
    message = await whole(app, max_tokens=0)
    assert (message["content"], message["stop_reason"]) == ([], "max_tokens")
    assert message["usage"]["output_tokens"] == 0
    format = {"type": "json_schema", "schema": CITY}
    assert (await parsed(app, max_tokens=0, output_config={"format": format})).request.grammar is None
    assert not (await parsed(app)).request.is_prompt_only


async def test_the_prompt_is_that_of_the_same_chat(app):
    messages = [{"role": "system", "content": "Be brief."}, USER]
    expected = app.state.context.text.chat_template.render(messages)
    assert (await parsed(app, system="Be brief.")).request.prompt_token_ids == tuple(expected)


async def test_a_last_answer_is_continued(app):
    messages = [USER, {"role": "assistant", "content": [{"type": "text", "text": "It is"}]}]
    assert (await prompt_of(app, messages=messages)).endswith("It is")


@pytest.mark.parametrize(
    ("thinking", "variables"),
    [
        (None, {}),
        ({"type": "adaptive", "display": "omitted"}, {}),
        ({"type": "between_tools"}, {}),
        ({"type": "enabled", "budget_tokens": 1024}, {"enable_thinking": True, "thinking": True}),
        ({"type": "enabled"}, {"enable_thinking": True, "thinking": True}),
        ({"type": "disabled"}, {"enable_thinking": False, "thinking": False}),
    ],
)
async def test_thinking_is_a_variable_of_the_template_and_never_an_error(app, monkeypatch, thinking, variables):
    seen = []

    def render(self, messages, options, **limits):
        seen.append(options.variables)
        return [5]

    monkeypatch.setattr(ChatTemplate, "render", render)
    request = await parsed(app, thinking=thinking)
    assert seen == [variables] and request.request.params.thinking_token_budget is None


async def test_effort_is_a_variable_of_the_template(app, monkeypatch):
    seen = []

    def render(self, messages, options, **limits):
        seen.append(options.variables)
        return [5]

    monkeypatch.setattr(ChatTemplate, "render", render)
    await parsed(app, output_config={"effort": "xhigh"})
    await parsed(app, output_config={"effort": None})
    assert seen == [{"reasoning_effort": "xhigh"}, {}]


@pytest.mark.parametrize("name", ["output_config", "output_format"])
async def test_a_format_is_a_grammar(name):
    app = with_grammars(await make_app(FakeEngine()))
    format = {"type": "json_schema", "schema": CITY}
    given_format = {name: format if name == "output_format" else {"format": format}}
    request = await parsed(app, **given_format)
    request.release()
    assert "city" in request.request.grammar.source
    beside = await parsed(app, **given_format, tools=TOOLS, tool_choice={"type": "any"})
    beside.release()
    assert "weather" in beside.request.grammar.source, "calls come first, as agents expect"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"output_config": {"format": {"type": "json_schema", "schema": {"not": {}}}}}, "output_config.format.schema"),
        ({"output_format": {"type": "json_schema", "schema": {"not": {}}}}, "output_format.schema"),
        (
            {
                "output_format": {"type": "json_schema", "schema": {}},
                "output_config": {"format": {"type": "json_schema", "schema": {}}},
            },
            "output_format",
        ),
    ],
)
async def test_a_wrong_format_is_named_as_the_client_has_it(fields, param):
    app = with_grammars(await make_app(FakeEngine()))
    with pytest.raises(RequestError) as caught:
        await parsed(app, **fields)
    assert caught.value.param == param and param in caught.value.message


async def test_a_long_prompt_has_both_numbers_in_its_error(app):
    limit = MODEL_INFO.max_model_len - 1
    words = "word " * limit
    with pytest.raises(ContextLengthExceeded) as caught:
        await parsed(app, messages=[{"role": "user", "content": words}])
    num_tokens = len(app.state.context.text.tokenizer.encode(words))
    start, _, end = caught.value.message.partition(" tokens > ")
    assert end == f"{limit} maximum"
    assert int(start.removeprefix("prompt is too long: ")) in range(num_tokens, num_tokens + 40)
    assert caught.value.param == "messages"


async def test_the_tokens_of_a_very_long_prompt_are_estimated_and_counted_for_who_asks(app):
    text = "What is the weather in Oslo? " * 40_000
    num_tokens = len(app.state.context.text.tokenizer.encode(text))
    assert len(text) > 10 * SAMPLE_CHARS
    messages = [{"role": "user", "content": text}]
    with pytest.raises(ContextLengthExceeded) as caught:
        await parsed(app, messages=messages)
    found = int(caught.value.message.removeprefix("prompt is too long: ").partition(" ")[0])
    assert found == pytest.approx(num_tokens, rel=0.02)
    assert (await count(app, messages=messages)).input_tokens in range(num_tokens, num_tokens + 40)


@pytest.mark.parametrize(
    "block",
    [
        {"type": "tool_use", "id": "a", "name": "f", "input": {"text": "word " * 40_000}},
        {"type": "tool_use", "id": "a", "name": "f", "input": "word " * 40_000},
    ],
    ids=["arguments", "arguments as text"],
)
async def test_the_arguments_of_calls_are_estimated_too(app, block):
    """Files that agents write are arguments of calls."""
    num_tokens = len(app.state.context.text.tokenizer.encode("word " * 40_000))
    messages = [USER, {"role": "assistant", "content": [block, {"type": "text", "text": "word"}]}, USER]
    with pytest.raises(ContextLengthExceeded) as caught:
        await parsed(app, messages=messages, system="word " * 1000)
    found = int(caught.value.message.removeprefix("prompt is too long: ").partition(" ")[0])
    assert found == pytest.approx(num_tokens, rel=0.1)


async def test_a_prompt_that_fills_the_kv_cache_has_the_same_words():
    engine = FakeEngine()
    engine.model_info = lambda: replace(MODEL_INFO, kv_capacity_tokens=16)
    with pytest.raises(KVCapacityExceeded, match=r"^prompt is too long: \d+ tokens > 16 maximum$"):
        await parsed(await make_app(engine), messages=[{"role": "user", "content": "word " * 50}])


async def test_tools_alone_may_be_too_long(app):
    tools = [{"name": "f", "description": "word " * 40_000, "input_schema": CITY}]
    with pytest.raises(ContextLengthExceeded, match=r"^prompt is too long: \d+ tokens > 2047 maximum$"):
        await parsed(app, tools=tools)


@pytest.mark.parametrize(
    "block",
    [
        {"type": "tool_use", "id": "a", "name": "f", "input": {"text": "word " * 200_000}},
        {"type": "tool_use", "id": "a", "name": "f", "input": "word " * 200_000},
        {"type": "text", "text": "word " * 200_000},
    ],
    ids=["arguments", "arguments as text", "text"],
)
async def test_a_megabyte_in_one_block_is_too_long(app, block):
    messages = [USER, {"role": "assistant", "content": [block]}, USER]
    with pytest.raises(ContextLengthExceeded, match=r"^prompt is too long: \d+ tokens > 2047 maximum$"):
        await parsed(app, messages=messages)


async def test_a_message_of_many_blocks_is_read(app):
    content = [{"type": "text", "text": "a"}] * 500
    request = await parsed(app, messages=[{"role": "user", "content": content}])
    joined = await parsed(app, messages=[{"role": "user", "content": "\n".join(["a"] * 500)}])
    assert request.request.prompt_token_ids == joined.request.prompt_token_ids


async def test_an_alias_names_the_served_model():
    app = await make_app(FakeEngine(), model_alias=("claude-haiku", "other"))
    for name in ("guide", "claude-haiku", "other", None):
        assert (await parsed(app, model=name)).model == "guide"
    with pytest.raises(ModelNotFound):
        await parsed(app, model="claude-opus")
    assert (await parsed(await make_app(model_alias=("*",)), model="claude-opus")).model == "guide"
    with pytest.raises(ModelNotFound):
        await parsed(await make_app(), model="claude-haiku")


async def test_the_count_is_that_of_the_prompt(app):
    fields = {"system": "Be brief.", "tools": TOOLS, "thinking": {"type": "adaptive"}}
    counted = await count(app, **fields, betas=["x"])
    assert counted.input_tokens == len((await parsed(app, **fields)).request.prompt_token_ids)
    assert counted.ignored == ("betas",)


async def test_a_body_of_too_many_messages_is_rejected(app):
    with pytest.raises(InvalidValue, match=rf"^messages has {MAX_MESSAGES + 1} items"):
        await parsed(app, messages=[{"role": "user", "content": "a"}] * (MAX_MESSAGES + 1))


NAMES = st.sampled_from(["text", "type", "content", "role", "id", "name", "input", "source", "data", "thinking"])
KINDS = st.sampled_from(["text", "thinking", "tool_use", "tool_result", "image", "document", "search_result", "x"])
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), KINDS, st.text(max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(NAMES, inner, max_size=4),
        st.fixed_dictionaries({"type": KINDS}, optional={"text": inner, "content": inner, "source": inner}),
    ),
    max_leaves=12,
)


@settings(max_examples=examples(150), deadline=None)
@given(messages=JSON, system=JSON, tools=JSON)
async def test_any_json_is_a_message_or_an_error_that_names_a_field(messages, system, tools):
    context = (await make_app(FakeEngine())).state.context
    content = [{"role": "user", "content": messages}, {"role": "assistant", "content": system}]
    for body in ({"messages": messages}, {"messages": content}, {"messages": [USER], "system": system, "tools": tools}):
        try:
            await parse(raw(BODY | body), context, parse_message)
        except RequestError as error:
            assert error.param is not None and error.param.startswith(("messages", "system", "tools")), error.message


async def test_both_routes_read_the_same_body(app):
    body = {"messages": [USER], "system": "Be brief.", "tools": TOOLS}
    async with client_of(app) as client:
        message = (await client.post(PATH, json=body | {"max_tokens": 1})).json()
        counted = (await client.post(COUNT, json=body)).json()
    assert counted == {"input_tokens": message["usage"]["input_tokens"]}


async def test_a_budget_acts_where_the_marks_are_single_tokens(tmp_path):
    (tmp_path / "granite.jinja").write_text(GRANITE)
    app = await make_app(FakeEngine(), chat_template=str(tmp_path / "granite.jinja"))
    thinking = {"type": "enabled", "budget_tokens": 5}
    assert (await parsed(app, thinking=thinking)).request.params.thinking_token_budget is None
    text = app.state.context.text
    first, second, *_ = text.tokenizer.special_tokens
    answers = replace(text.answers, reasoning=ReasoningStyle("marks", first, second))
    app.state.context.text = replace(text, answers=answers)
    assert (await parsed(app, thinking=thinking)).request.params.thinking_token_budget == 5
    assert (await parsed(app, thinking={"type": "adaptive"})).request.params.thinking_token_budget is None
