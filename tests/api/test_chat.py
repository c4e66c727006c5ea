"""From a chat body to an engine request."""

import json
from dataclasses import replace

import pytest

from app.admission import num_blocks_needed
from app.api.chat import prepare_chat
from app.brownout import MAX_LEVEL, effects
from app.errors import ContextLengthExceeded, InvalidValue, JsonInvalid
from app.messages import EngineStats, SamplingDefaults
from app.text.chat_template import ChatTemplate
from tests.api.serving import make_app
from tests.fakes import CARD, FakeEngine

BODY = {"messages": [{"role": "user", "content": "Hi"}]}


@pytest.fixture
async def context():
    return (await make_app(FakeEngine())).state.context


async def test_a_raw_body_and_a_parsed_one_are_prepared_alike(context):
    body = BODY | {"seed": 1, "stream": True, "stream_options": {"include_usage": True}, "foo": 1}
    raw, parsed = await prepare_chat(json.dumps(body).encode(), context), await prepare_chat(body, context)
    for one in (raw, parsed):
        assert (one.model, one.stream, one.include_usage, one.ignored) == ("guide", True, True, ("foo",))
    assert raw.request.prompt_token_ids == parsed.request.prompt_token_ids
    assert raw.request.params == parsed.request.params


async def test_the_prompt_is_the_rendered_template(context):
    expected = context.text().chat_template.render(BODY["messages"])
    assert (await prepare_chat(BODY, context)).request.prompt_token_ids == tuple(expected)


async def test_ids_are_random_and_not_the_same_twice(context):
    first, second = [(await prepare_chat(BODY, context)).request.id for _ in range(2)]
    assert first != second
    assert first.startswith("chatcmpl-") and len(first) == len("chatcmpl-") + 32


async def test_parameters_are_resolved(context):
    request = (await prepare_chat(BODY, context)).request
    params, defaults = request.params, SamplingDefaults()
    assert params.max_tokens == CARD.max_model_len - len(request.prompt_token_ids)
    assert params.temperature == defaults.temperature
    assert isinstance(params.seed, int)


async def test_either_limit_is_taken(context):
    for name in ("max_tokens", "max_completion_tokens"):
        assert (await prepare_chat(BODY | {name: 7}, context)).request.params.max_tokens == 7


@pytest.mark.parametrize(
    ("fields", "logprobs"),
    [({}, None), ({"logprobs": False}, None), ({"logprobs": True}, 0), ({"logprobs": True, "top_logprobs": 4}, 4)],
)
async def test_logprobs_are_a_switch_and_a_number(context, fields, logprobs):
    assert (await prepare_chat(BODY | fields, context)).request.params.logprobs == logprobs


async def test_templates_see_known_roles_and_developer_is_the_newer_word_for_system(tmp_path):
    template = tmp_path / "roles.jinja"
    template.write_text("{% for message in messages %}{{ message.role }}:{{ message.content }};{% endfor %}")
    context = (await make_app(chat_template=str(template))).state.context
    messages = [{"role": role, "content": role[0]} for role in ("developer", "system", "user", "assistant")]
    prompt = (await prepare_chat({"messages": messages}, context)).request.prompt_token_ids
    assert context.text().tokenizer.decode(prompt) == "system:d;system:s;user:u;assistant:a;"


async def test_special_tokens_in_a_message_are_text(context):
    tokenizer = context.text().tokenizer
    spelling, token_id = next(iter(tokenizer.special_tokens.items()))
    plain = (await prepare_chat(BODY, context)).request.prompt_token_ids
    body = {"messages": [{"role": "user", "content": f"Hi{spelling}"}]}
    forged = (await prepare_chat(body, context)).request.prompt_token_ids
    assert forged.count(token_id) == plain.count(token_id)


async def test_a_parsed_body_has_the_limits_of_a_raw_one(context):
    deep: object = 0
    for _ in range(40):
        deep = [deep]
    with pytest.raises(JsonInvalid):
        await prepare_chat(BODY | {"x": deep}, context)


async def test_thinking_may_be_switched(context):
    for value in (True, False):
        await prepare_chat(BODY | {"chat_template_kwargs": {"enable_thinking": value}}, context)


async def test_a_request_says_when_it_must_start_and_end_and_whose_turn_comes_first(context):
    fields = {"queue_timeout": 2, "timeout": 7.5, "priority": -3, "cache_salt": "mine"}
    request = (await prepare_chat(BODY | fields, context, "key-2")).request
    assert request.start_deadline == request.arrival_time + 2
    assert request.deadline == request.arrival_time + 7.5
    assert (request.priority, request.cache_salt, request.tenant) == (-3, "mine", "key-2")


async def test_nothing_said_means_no_deadline_and_no_salt(context):
    request = (await prepare_chat(BODY, context)).request
    assert (request.start_deadline, request.deadline, request.priority) == (None, None, 0)
    assert (request.cache_salt, request.tenant) == (None, None)


async def test_the_servers_queue_timeout_holds_unless_the_request_has_its_own():
    context = (await make_app(queue_timeout=3.0)).state.context
    for fields, seconds in (({}, 3), ({"queue_timeout": 60}, 60)):
        request = (await prepare_chat(BODY | fields, context)).request
        assert request.start_deadline == request.arrival_time + seconds
    assert (await prepare_chat(BODY | {"queue_timeout": 0}, context)).request.start_deadline is None


async def test_choices_and_beams_reach_the_parameters(context):
    params = (await prepare_chat(BODY | {"n": 2, "best_of": 5}, context)).request.params
    assert (params.n, params.num_sequences, params.use_beam_search) == (2, 5, False)
    beams = {"use_beam_search": True, "beam_width": 4, "length_penalty": 0.5, "early_stopping": "never"}
    params = (await prepare_chat(BODY | beams, context)).request.params
    assert (params.n, params.num_sequences, params.length_penalty, params.early_stopping) == (1, 4, 0.5, "never")


async def test_the_open_limit_leaves_room_for_every_choice():
    engine = FakeEngine()
    engine.card = lambda: replace(CARD, kv_capacity_tokens=640)  # type: ignore[method-assign]
    context = (await make_app(engine)).state.context
    request = (await prepare_chat(BODY | {"n": 4}, context)).request
    num_prompt = len(request.prompt_token_ids)
    max_slots = num_prompt + request.params.max_tokens - 1
    assert num_blocks_needed(num_prompt, max_slots, 4, 16) == 40
    assert num_blocks_needed(num_prompt, max_slots + 1, 4, 16) > 40


@pytest.mark.parametrize(
    ("level", "fields", "max_tokens"),
    [
        (MAX_LEVEL, {}, effects(MAX_LEVEL).default_max_tokens),
        (MAX_LEVEL, {"max_tokens": 1000}, 1000),
        (MAX_LEVEL, {"max_completion_tokens": 1000}, 1000),
        (MAX_LEVEL, {"min_tokens": 700}, 700),
        (1, {"n": 1}, None),
    ],
)
async def test_under_pressure_only_an_answer_without_a_limit_is_cut(level, fields, max_tokens):
    engine = FakeEngine()
    engine.stats = lambda: EngineStats(brownout_level=level)  # type: ignore[method-assign]
    request = (await prepare_chat(BODY | fields, (await make_app(engine)).state.context)).request
    assert request.params.max_tokens == (max_tokens or CARD.max_model_len - len(request.prompt_token_ids))


async def test_errors_of_the_template_name_the_messages(context):
    with pytest.raises(InvalidValue) as caught:
        await prepare_chat({"messages": [{"role": "user", "content": "\ud800"}]}, context)
    assert caught.value.param == "messages"


async def test_messages_that_cannot_fit_are_refused_before_they_are_rendered(context, monkeypatch):
    longest = CARD.max_model_len * context.text().tokenizer.max_piece_chars
    rendered = []

    def render(self, messages, **options):
        rendered.append(len(messages))
        return [5]

    monkeypatch.setattr(ChatTemplate, "render", render)
    half = {"role": "user", "content": "x" * (longest // 2)}
    parts = {"role": "user", "content": [{"type": "text", "text": "x" * (longest // 4)}] * 2}
    await prepare_chat({"messages": [half, parts]}, context)
    with pytest.raises(ContextLengthExceeded, match=f"{longest + 1} characters") as refused:
        await prepare_chat({"messages": [half, parts, {"role": "user", "content": "x"}]}, context)
    assert refused.value.param == "messages"
    assert rendered == [2]


async def test_what_one_request_may_make_is_bounded_before_anything_else(context, monkeypatch):
    card = replace(CARD, max_model_len=262_144, kv_capacity_tokens=10**7)
    monkeypatch.setattr(context.engine, "card", lambda: card)
    many = BODY | {"n": 16, "logprobs": True, "top_logprobs": 20}
    for field in ("max_tokens", "max_completion_tokens"):
        with pytest.raises(InvalidValue, match=r"1000000\. Lower max_tokens to 2976") as caught:
            await prepare_chat(many | {field: 2977}, context)
        assert (caught.value.param, caught.value.http_status) == (field, 400)
        assert (await prepare_chat(many | {field: 2976}, context)).request.params.max_tokens == 2976
    assert (await prepare_chat(many, context)).request.params.max_tokens == 2976
    assert (await prepare_chat(BODY, context)).request.params.max_tokens > 262_000
