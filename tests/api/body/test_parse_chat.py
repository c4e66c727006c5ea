"""From a chat body to an engine request."""

import re
from dataclasses import replace

import pytest

from app.api.body.parse_chat import parse_chat
from app.api.body.schemas import ChatBody
from app.api.http.accounts import Sender
from app.contract.errors import ContextLengthExceeded, InvalidValue, RequestError
from app.contract.sampling_defaults import SamplingDefaults
from app.text.template.chat_template import ChatTemplate
from tests.api.serving import client_of, make_app, parse, raw
from tests.contract.blocks_needed import num_blocks_needed
from tests.fakes import MODEL_INFO, FakeEngine
from tests.text.templates import GEMMA_2

BODY = {"messages": [{"role": "user", "content": "Hi"}]}


@pytest.fixture
async def context():
    return (await make_app(FakeEngine())).state.context


async def test_response_options_come_from_the_body(context):
    body = raw(BODY | {"seed": 1, "stream": True, "stream_options": {"include_usage": True}, "foo": 1})
    one = await parse(body, context, parse_chat)
    assert (one.model, one.stream, one.include_usage, one.ignored) == ("guide", True, True, ("foo",))


async def test_a_streaming_transport_streams_whatever_the_body_says(context):
    body = BODY | {"stream_options": {"slow_reader": "drop"}}
    for fields in ({}, {"stream": True}, {"stream": False}):
        assert (await parse(raw(body | fields), context, parse_chat, always_streams=True)).stream


async def test_the_prompt_is_the_rendered_template(context):
    expected = context.text.chat_template.render(BODY["messages"])
    assert (await parse(raw(BODY), context, parse_chat)).request.prompt_token_ids == tuple(expected)


async def test_request_ids_are_random(context):
    first, second = [(await parse(raw(BODY), context, parse_chat)).request.id for _ in range(2)]
    assert first != second
    assert first.startswith("chatcmpl-") and len(first) == len("chatcmpl-") + 32


async def test_defaults_of_sampling_parameters_are_filled_in(context):
    request = (await parse(raw(BODY), context, parse_chat)).request
    params, defaults = request.params, SamplingDefaults()
    assert params.max_tokens == MODEL_INFO.max_model_len - len(request.prompt_token_ids)
    assert params.temperature == defaults.temperature
    assert isinstance(params.seed, int)


async def test_max_tokens_and_max_completion_tokens_are_synonyms(context):
    for name in ("max_tokens", "max_completion_tokens"):
        assert (await parse(raw(BODY | {name: 7}), context, parse_chat)).request.params.max_tokens == 7


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens", "thinking_token_budget", "seed"])
async def test_minus_one_is_no_limit_and_no_seed(context, name):
    """As llama.cpp's and vLLM's clients send it."""
    request = (await parse(raw(BODY | {name: -1}), context, parse_chat)).request
    assert request.params.max_tokens == MODEL_INFO.max_model_len - len(request.prompt_token_ids)
    assert request.params.thinking_token_budget is None
    again = (await parse(raw(BODY | {name: -1}), context, parse_chat)).request
    assert request.params.seed != again.params.seed


@pytest.mark.parametrize(
    ("fields", "logprobs"),
    [({}, None), ({"logprobs": False}, None), ({"logprobs": True}, 0), ({"logprobs": True, "top_logprobs": 4}, 4)],
)
async def test_logprobs_is_a_boolean_and_top_logprobs_a_number(context, fields, logprobs):
    assert (await parse(raw(BODY | fields), context, parse_chat)).request.params.logprobs == logprobs


async def test_the_developer_role_is_rendered_as_system(tmp_path):
    template = tmp_path / "roles.jinja"
    template.write_text("{% for message in messages %}{{ message.role }}:{{ message.content }};{% endfor %}")
    context = (await make_app(chat_template=str(template))).state.context
    messages = [{"role": role, "content": role[0]} for role in ("developer", "system", "user", "assistant")]
    prompt = (await parse(raw({"messages": messages}), context, parse_chat)).request.prompt_token_ids
    assert context.text.tokenizer.decode(prompt) == "system:d;system:s;user:u;assistant:a;"


async def test_special_tokens_in_a_message_are_text(context):
    tokenizer = context.text.tokenizer
    spelling, token_id = next(iter(tokenizer.special_tokens.items()))
    plain = (await parse(raw(BODY), context, parse_chat)).request.prompt_token_ids
    body = {"messages": [{"role": "user", "content": f"Hi{spelling}"}]}
    forged = (await parse(raw(body), context, parse_chat)).request.prompt_token_ids
    assert forged.count(token_id) == plain.count(token_id)


async def test_enable_thinking_reaches_the_template(context, monkeypatch):
    seen = []

    def render(self, messages, options, **limits):
        seen.append(options.variables)
        return [5]

    monkeypatch.setattr(ChatTemplate, "render", render)
    for kwargs in ({"enable_thinking": True}, {"enable_thinking": False}, {}):
        await parse(raw(BODY | {"chat_template_kwargs": kwargs}), context, parse_chat)
    both = [{"enable_thinking": value, "thinking": value} for value in (True, False)]
    assert seen == [*both, {}]


async def test_timeouts_priority_salt_and_tenant_reach_the_request(context):
    fields = {"queue_timeout": 2, "timeout": 7.5, "priority": -3, "cache_salt": "mine"}
    request = (await parse(raw(BODY | fields), context, parse_chat, Sender("key-2", "key-2"))).request
    assert request.start_deadline == request.arrival_time + 2
    assert request.deadline == request.arrival_time + 7.5
    assert (request.priority, request.cache_salt, request.tenant) == (-3, "mine", "key-2")


async def test_by_default_a_request_has_no_deadline_and_no_salt(context):
    request = (await parse(raw(BODY), context, parse_chat)).request
    assert (request.start_deadline, request.deadline, request.priority) == (None, None, 0)
    assert (request.cache_salt, request.tenant) == (None, None)


async def test_the_queue_timeout_of_a_request_overrides_the_servers():
    context = (await make_app(queue_timeout=3.0)).state.context
    for fields, seconds in (({}, 3), ({"queue_timeout": 60}, 60)):
        request = (await parse(raw(BODY | fields), context, parse_chat)).request
        assert request.start_deadline == request.arrival_time + seconds
    assert (await parse(raw(BODY | {"queue_timeout": 0}), context, parse_chat)).request.start_deadline is None


async def test_choices_and_beams_reach_the_parameters(context):
    params = (await parse(raw(BODY | {"n": 2, "best_of": 5}), context, parse_chat)).request.params
    assert (params.n, params.num_sequences, params.use_beam_search) == (2, 5, False)
    beams = {"use_beam_search": True, "beam_width": 4, "length_penalty": 0.5, "early_stopping": "never"}
    params = (await parse(raw(BODY | beams), context, parse_chat)).request.params
    assert (params.n, params.num_sequences, params.length_penalty, params.early_stopping) == (1, 4, 0.5, "never")


async def test_the_default_max_tokens_leaves_cache_for_every_choice():
    engine = FakeEngine()
    engine.model_info = lambda: replace(MODEL_INFO, kv_capacity_tokens=640)  # type: ignore[method-assign]
    context = (await make_app(engine)).state.context
    request = (await parse(raw(BODY | {"n": 4}), context, parse_chat)).request
    num_prompt = len(request.prompt_token_ids)
    max_slots = num_prompt + request.params.max_tokens - 1
    assert num_blocks_needed(num_prompt, max_slots, 4, 16) == 40
    assert num_blocks_needed(num_prompt, max_slots + 1, 4, 16) > 40


async def test_template_errors_name_the_field_messages(context, monkeypatch):
    def render(self, messages, options, **limits):
        raise InvalidValue("no such template", param="prompt")

    monkeypatch.setattr(ChatTemplate, "render", render)
    with pytest.raises(InvalidValue) as caught:
        await parse(raw(BODY), context, parse_chat)
    assert caught.value.param == "messages"


async def test_messages_that_cannot_fit_are_rejected_before_rendering(context, monkeypatch):
    longest = MODEL_INFO.max_model_len * context.text.tokenizer.max_token_chars
    rendered = []

    def render(self, messages, options, **limits):
        rendered.append(len(messages))
        return [5]

    monkeypatch.setattr(ChatTemplate, "render", render)
    half = {"role": "user", "content": "x" * (longest // 2)}
    parts = {"role": "user", "content": [{"type": "text", "text": "x" * (longest // 4)}] * 2}
    await parse(raw({"messages": [half, parts]}), context, parse_chat)
    with pytest.raises(ContextLengthExceeded, match=f"{longest + 1} characters") as caught:
        await parse(raw({"messages": [half, parts, {"role": "user", "content": "x"}]}), context, parse_chat)
    assert caught.value.param == "messages"
    assert rendered == [2]


CALLS = [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
QUESTION = {"role": "user", "content": "Hi"}


@pytest.mark.parametrize("content", [{}, {"content": None}, {"content": ""}, {"content": []}])
@pytest.mark.parametrize("result", [{}, {"content": None}, {"content": ""}, {"content": []}])
async def test_calls_and_results_may_have_no_content(context, content, result):
    history = [
        QUESTION,
        {"role": "assistant", "tool_calls": CALLS} | content,
        {"role": "tool", "tool_call_id": "c1"} | result,
    ]
    whole = [QUESTION, {**history[1], "content": ""}, {**history[2], "content": ""}]
    prompts = [
        (await parse(raw({"messages": messages}), context, parse_chat)).request.prompt_token_ids
        for messages in (history, whole)
    ]
    assert prompts[0] == prompts[1]


@pytest.mark.parametrize("role", ["user", "system"])
async def test_a_question_without_content_is_said_to_have_none_or_an_empty_list(context, role):
    for content, what in (({}, "missing"), ({"content": None}, "missing"), ({"content": []}, "an empty list")):
        with pytest.raises(InvalidValue, match=rf"messages\[0\].content is {what}; it must be"):
            await parse(raw({"messages": [{"role": role} | content]}), context, parse_chat)


@pytest.mark.parametrize("name", [name for name in ChatBody.__struct_fields__ if name != "messages"])
async def test_null_is_the_same_as_no_field(context, name):
    with_null = (await parse(raw(BODY | {"seed": 7, name: None}), context, parse_chat)).request
    assert with_null.prompt_token_ids == (await parse(raw(BODY), context, parse_chat)).request.prompt_token_ids


@pytest.mark.parametrize(("field", "value"), [
    ("name", None), ("tool_calls", None), ("tool_calls", []), ("tool_call_id", None), ("reasoning_content", None),
    ("reasoning_content", ""), ("reasoning", None), ("refusal", None), ("annotations", []), ("audio", None),
    ("function_call", None), ("function_call", {}), ("metadata", {}),
])  # fmt: skip
@pytest.mark.parametrize("role", ["user", "assistant"])
async def test_an_empty_field_of_a_message_is_the_same_as_none(context, role, field, value):
    message = {"role": role, "content": "Hi"}
    prompts = [
        (await parse(raw({"messages": [one]}), context, parse_chat)).request.prompt_token_ids
        for one in (message, message | {field: value})
    ]
    assert prompts[0] == prompts[1]


@pytest.mark.parametrize("content", [{}, {"content": None}, {"content": ""}, {"content": []}])
async def test_an_empty_assistant_message_is_accepted(context, content):
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", **content}, {"role": "user", "content": "Ho"}]
    expected = context.text.chat_template.render([messages[0], {"role": "assistant", "content": ""}, messages[2]])
    assert (await parse(raw({"messages": messages}), context, parse_chat)).request.prompt_token_ids == tuple(expected)


@pytest.mark.parametrize("fields", [{"logprobs": False, "top_logprobs": 0}, {"top_logprobs": 0}])
async def test_top_logprobs_0_is_accepted_without_logprobs(context, fields):
    assert (await parse(raw(BODY | fields), context, parse_chat)).request.params.logprobs is None


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"max_completion_tokens": 0}, "max_completion_tokens is 0; it must be an integer of at least 1"),
        ({"max_tokens": 0}, "max_tokens is 0; it must be an integer of at least 1"),
        ({"max_tokens": 4, "max_completion_tokens": 5}, "max_tokens and max_completion_tokens differ"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs is 21; it must be an integer between 0 and 20"),
        ({"seed": 2**64}, "seed has more than 64 bits; it must be an integer of at most 64 bits."),
        ({"seed": -(2**70)}, "seed has more than 64 bits"),
        ({"stop_token_ids": [1, 2**70]}, "stop_token_ids[1] has more than 64 bits"),
        ({"logit_bias": {"7": 101}}, "logit_bias of token 7 is 101; it must be a number between -100 and 100"),
        ({"logit_bias": {"-7": 1}}, "logit_bias has the key '-7'; it must be a token id"),
        ({"logit_bias": {"7": 1, "Hi": 1}}, "logit_bias has the key 'Hi'; it must be a token id"),
        ({"logit_bias": {"7.5": 1}}, "logit_bias has the key '7.5'; it must be a token id"),
        ({"logit_bias": {"7": 1, "8": "2"}}, "logit_bias of token 8 is '2'; it must be a number between -100 and 100"),
        ({"logit_bias": {"7": True}}, "logit_bias of token 7 is True; it must be a number between -100 and 100"),
        ({"logit_bias": {"7": None}}, "logit_bias of token 7 is None; it must be a number between -100 and 100"),
        ({"logit_bias": {"99999": 1}}, "logit_bias contains the token id 99999; it must be between 0 and"),
        ({"min_new_tokens": 3}, "min_new_tokens is not supported; send min_tokens"),
    ],
)  # fmt: skip
async def test_an_error_message_names_the_field_that_was_sent_and_its_bound(context, fields, words):
    with pytest.raises(RequestError) as caught:
        await parse(raw(BODY | fields), context, parse_chat)
    assert caught.value.message.startswith(words)
    assert caught.value.param.partition("[")[0] == list(fields)[-1]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": [{"role": "user", "content": "word " * 4 * MODEL_INFO.max_model_len}]}, "messages"),
        ({"messages": [{"role": "user", "content": "x" * 2**20}]}, "messages"),
        ({"max_tokens": MODEL_INFO.max_model_len}, "max_tokens"),
    ],
)
async def test_a_full_context_has_the_error_message_that_clients_search_for(context, fields, param):
    with pytest.raises(ContextLengthExceeded) as caught:
        await parse(raw(BODY | fields), context, parse_chat)
    assert caught.value.message.startswith(
        f"This model's maximum context length is {MODEL_INFO.max_model_len} tokens. "
    )
    assert caught.value.param == param
    assert "context_length_exceeded" in caught.value.message  # LangChain.js sees nothing but the message


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens", "min_tokens"])
async def test_the_advice_for_a_length_that_does_not_fit_works(context, field):
    with pytest.raises(ContextLengthExceeded) as caught:
        await parse(raw(BODY | {field: 100_000_000}), context, parse_chat)
    [number] = re.findall(rf"lower {field} to (\d+)", caught.value.message)
    await parse(raw(BODY | {field: int(number)}), context, parse_chat)
    assert caught.value.param == field


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"reasoning": {"max_tokens": 5}}, "reasoning.max_tokens"),  # `guide` does not reason
        ({"reasoning": {"max_tokens": -5}}, "reasoning.max_tokens"),
        ({"thinking_token_budget": 5}, "thinking_token_budget"),
        ({"reasoning": {"effort": "low"}, "chat_template_kwargs": {"reasoning_effort": "high"}}, "reasoning.effort"),
        ({"reasoning": {"enabled": False}, "chat_template_kwargs": {"enable_thinking": True}}, "reasoning.enabled"),
        ({"reasoning_effort": "low", "chat_template_kwargs": {"reasoning_effort": "high"}}, "reasoning_effort"),
    ],
    ids=str,
)
async def test_an_error_about_reasoning_names_the_field_that_was_sent(context, fields, param):
    with pytest.raises(RequestError) as caught:
        await parse(raw(BODY | fields), context, parse_chat)
    assert caught.value.param == param and caught.value.message.startswith(f"{param} ")


async def test_the_output_size_of_one_request_is_bounded_first(context, monkeypatch):
    large_model_info = replace(MODEL_INFO, max_model_len=262_144, kv_capacity_tokens=10**7)
    monkeypatch.setattr(context.engine, "model_info", lambda: large_model_info)
    many = BODY | {"n": 16, "logprobs": True, "top_logprobs": 20}
    for field in ("max_tokens", "max_completion_tokens"):
        with pytest.raises(InvalidValue) as caught:
            await parse(raw(many | {field: 2977}), context, parse_chat)
        assert f"1000000. Lower {field} to 2976" in caught.value.message
        assert (caught.value.param, caught.value.http_status) == (field, 400)
        assert (await parse(raw(many | {field: 2976}), context, parse_chat)).request.params.max_tokens == 2976
    assert (await parse(raw(many), context, parse_chat)).request.params.max_tokens == 2976
    assert (await parse(raw(BODY), context, parse_chat)).request.params.max_tokens > 262_000


async def test_messages_are_fitted_to_the_template(tmp_path):
    """Codex sends two developer messages and two of the user, which a template with alternating roles would reject."""
    (tmp_path / "template.jinja").write_text(GEMMA_2)
    app = await make_app(chat_template=str(tmp_path / "template.jinja"))
    roles = ("developer", "developer", "user", "user", "assistant", "system", "user")
    messages = [{"role": role, "content": f"<{number}>"} for number, role in enumerate(roles)]
    async with client_of(app) as client:
        answer = await client.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 1})
        prompt = await client.post("/apply-template", json={"messages": messages})
    assert answer.status_code == 200, answer.text
    assert [text.partition("<end_of_turn>")[0] for text in prompt.json()["prompt"].split("<start_of_turn>")[1:]] == [
        "user\n<0>\n\n<1>\n\n<2>\n\n<3>", "model\n<4>", "user\n<5>\n\n<6>", "model\n",
    ]  # fmt: skip
