"""From the body of a request for a response to an engine request, and to what its answer repeats."""

import dataclasses
import json
from functools import partial
from itertools import pairwise
from typing import Any

import pytest

from app.api.body import parse_request
from app.api.body.parse_chat import parse_chat
from app.api.http.accounts import Sender
from app.api.responses.asked import AskedReasoning, AskedResponse, CalledTool
from app.api.responses.item_kinds import MAX_ITEMS
from app.api.responses.parse_response import count_prompt, parse_response
from app.api.responses.response_fields import ResponsesBody
from app.contract.errors import (
    ContextLengthExceeded,
    InvalidValue,
    PreviousResponseNotFound,
    RequestError,
    UnsupportedParameter,
)
from app.contract.sampling_params import MAX_TOKENS
from tests.api.serving import make_app, parse, raw, with_grammars
from tests.fakes import MODEL_INFO, FakeEngine

BODY = {"input": "Hi", "seed": 7}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
TOOL = {"type": "function", "name": "f", "parameters": SCHEMA, "strict": False}
CHAT_TOOL = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}
NO_TYPE = {"type": "object", "properties": {"a": {"type": "no type"}}}
ROOM = 60_000


def engine_with_room() -> FakeEngine:
    """An engine whose context has room for the prompts of agents."""
    engine = FakeEngine()
    engine.model_info = lambda: dataclasses.replace(MODEL_INFO, max_model_len=ROOM)  # type: ignore[method-assign]
    return engine


@pytest.fixture
async def context():
    return with_grammars(await make_app(engine_with_room())).state.context


async def parsed(context: Any, **fields: Any):
    return await parse(raw({**BODY, **fields}), context, parse_response)


async def asked(context: Any, **fields: Any) -> AskedResponse:
    request = await parsed(context, **fields)
    assert isinstance(request.asked, AskedResponse)
    return request.asked


async def prompt(context: Any, **fields: Any) -> str:
    """The text of a prompt."""
    token_ids = (await parsed(context, **fields)).request.prompt_token_ids
    return context.text.tokenizer.decode(token_ids, skip_special_tokens=False)


def outcome(request: Any) -> str:
    """What a parsed request says, but for its random id and its time."""
    engine = request.request
    times = {
        name: getattr(engine, name) and round(getattr(engine, name) - engine.arrival_time)
        for name in ("start_deadline", "deadline")
    }
    engine = dataclasses.replace(engine, id="", arrival_time=0.0, **times)
    return repr(
        dataclasses.replace(request, request=engine, created=0, token_bytes=None, demand=None, asked=None, lease=None)
    )


# A value that changes the request, for each field that acts, and what it needs beside it.
ACTING: dict[str, tuple[object, dict[str, Any]]] = {
    "input": ("Ho", {}),
    "instructions": ("Be brief.", {}),
    "tools": ([TOOL], {}),
    "tool_choice": ("required", {"tools": [TOOL]}),
    "parallel_tool_calls": (False, {"tools": [TOOL]}),
    "text": ({"format": {"type": "json_object"}}, {}),
    "include": (["message.output_text.logprobs"], {}),
    "top_logprobs": (3, {"include": ["message.output_text.logprobs"]}),
    "max_output_tokens": (5, {}),
    "stream": (True, {}),
    "stream_options": ({"slow_reader": "drop"}, {"stream": True}),
    "temperature": (0.5, {}),
    "top_p": (0.5, {}),
    "top_k": (5, {}),
    "min_p": (0.5, {}),
    "presence_penalty": (1, {}),
    "frequency_penalty": (1, {}),
    "repetition_penalty": (1.5, {}),
    "logit_bias": ({"5": 1}, {}),
    "seed": (8, {}),
    "stop": ("x", {}),
    "stop_token_ids": ([5], {}),
    "ignore_eos": (True, {}),
    "min_tokens": (2, {}),
    "repetition_stop": (True, {}),
    "priority": (5, {}),
    "cache_salt": ("x", {}),
    "queue_timeout": (5, {}),
    "timeout": (5, {}),
    "timings": (True, {}),
}
# Values that the answer repeats, and nothing else is changed by.
REPEATED: dict[str, object] = {
    "metadata": {"a": "b"},
    "user": "Ann",
    "safety_identifier": "s",
    "prompt_cache_key": "k",
    "max_tool_calls": 3,
}
SILENT: dict[str, object] = {
    "store": True,
    "background": False,
    "truncation": "disabled",
    "service_tier": "flex",
    "prompt_cache_retention": "24h",
    "prompt_cache_options": {"mode": "explicit"},
    "access_programs": {"cyber": "standard"},
    "background_options": {"a": 1},
    "image": {"context_compression": "auto"},
    "client_metadata": {"x-codex-turn": "1"},
    "conversation": None,
    "prompt": {},
    "n": 1,
    "include": ["reasoning.encrypted_content", "web_search_call.action.sources"],
    "top_logprobs": 5,
    "stream_options": None,
    "text": {"verbosity": "low"},
    "reasoning": {"summary": "auto", "context": "all_turns", "mode": "pro"},
}
ELSEWHERE = {"model", "reasoning", "chat_template_kwargs", "previous_response_id", "thinking_token_budget"}


def test_every_field_of_the_body_has_a_test():
    assert set(ResponsesBody.__struct_fields__) == {*ACTING, *REPEATED, *ELSEWHERE, "store", "background", "truncation"}


@pytest.mark.parametrize("name", ACTING)
async def test_a_field_that_acts_changes_the_request(context, name):
    value, beside = ACTING[name]
    without = await parsed(context, **beside)
    assert outcome(await parsed(context, **{**beside, name: value})) != outcome(without)


@pytest.mark.parametrize("name", [*REPEATED, *SILENT])
async def test_a_field_without_effect_changes_nothing_and_is_not_named(context, name):
    value = REPEATED[name] if name in REPEATED else SILENT[name]
    assert outcome(await parsed(context, **{name: value})) == outcome(await parsed(context))


async def test_the_answer_repeats_what_was_asked(context):
    found = await asked(context, **REPEATED)
    assert {name: getattr(found, name) for name in REPEATED} == REPEATED


async def test_by_default_the_answer_repeats_defaults(context):
    request = await parsed(context)
    assert request.asked == AskedResponse(
        response_id=request.id,
        created_at=request.created,
        model="guide",
        temperature=request.request.params.temperature,
        top_p=request.request.params.top_p,
    )
    assert request.id.startswith("resp_") and len(request.id) == len("resp_") + 32


async def test_the_answer_repeats_texts_tools_and_choice_as_they_were_sent(context):
    form = {"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": True}
    fields: dict[str, Any] = {
        "instructions": "Be brief.",
        "tools": [TOOL, {"type": "web_search"}],
        "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]},
        "text": {"format": form, "verbosity": "low"},
        "max_output_tokens": 50_000_000,
        "truncation": "auto",
        "parallel_tool_calls": False,
    }
    found = await asked(context, **fields)
    assert {name: getattr(found, name) for name in fields} == fields
    assert found.called.of("f") == CalledTool("function", "f")
    assert (await asked(context, text={"verbosity": "low", "format": None})).text == {
        "format": {"type": "text"}, "verbosity": "low",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("reasoning", "summary"),
    [
        (None, None),
        ({"effort": "low"}, None),
        ({"summary": "auto"}, "auto"),
        ({"generate_summary": "detailed"}, "detailed"),
    ],
)
async def test_a_summary_of_reasoning_goes_out_if_one_is_asked_for(context, reasoning, summary):
    found = await asked(context, reasoning=reasoning)
    assert (found.has_summary, found.reasoning.summary) == (summary is not None, summary)


async def test_reasoning_effort_reaches_the_template(context, tmp_path):
    template = tmp_path / "effort.jinja"
    template.write_text("{{ reasoning_effort }}:{% for message in messages %}{{ message.content }}{% endfor %}")
    context = (await make_app(chat_template=str(template))).state.context
    assert await prompt(context, reasoning={"effort": "high"}) == "high:Hi"
    assert (await asked(context, reasoning={"effort": "high"})).reasoning == AskedReasoning(effort="high")
    with pytest.raises(InvalidValue) as caught:
        await parsed(context, reasoning={"effort": "high"}, chat_template_kwargs={"reasoning_effort": "low"})
    assert caught.value.param == "reasoning.effort"


@pytest.mark.parametrize("limit", [ROOM, 128_000, MAX_TOKENS + 1, 10**15])
async def test_a_limit_above_what_fits_is_lowered(context, limit):
    request = (await parsed(context, max_output_tokens=limit)).request
    assert request.params.max_tokens == ROOM - len(request.prompt_token_ids)


async def test_instructions_are_the_first_system_message(context):
    items = [{"role": "developer", "content": "Now."}, {"role": "user", "content": "Hi"}]
    sent = [{"role": "system", "content": "Be brief."}, *items]
    assert await prompt(context, instructions="Be brief.", input=items) == await prompt(context, input=sent)


AS_CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi"},
    {
        "role": "assistant",
        "content": "Let me see.",
        "reasoning_content": "Hm.",
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "12"},
    {"role": "user", "content": "And?"},
]
AS_ITEMS = [
    {"type": "message", "id": "m1", "role": "developer", "content": [{"type": "input_text", "text": "Be brief."}]},
    {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
    {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Hm."}], "content": None},
    {"type": "message", "id": "m2", "role": "assistant", "content": [{"type": "output_text", "text": "Let me see."}]},
    {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "f", "arguments": '{"a": 1}'},
    {"type": "function_call_output", "call_id": "c1", "output": "12"},
    {"role": "user", "content": "And?"},
]


@pytest.mark.parametrize("template", ["shows all", "knows tools"])
async def test_the_prompt_is_that_of_the_same_chat(context, tmp_path, template):
    if template == "knows tools":
        file = tmp_path / "tools.jinja"
        file.write_text(
            "{{ tools | tojson }}{% for message in messages %}<{{ message.role }}>{{ message.content }}"
            "{{ message.reasoning_content }}{% for call in message.tool_calls or [] %}<tool_call>{{ call.id }}"
            "{{ call.function | tojson }}{% endfor %}{{ message.tool_call_id }}{% endfor %}"
        )
        context = (await make_app(engine_with_room(), chat_template=str(file))).state.context
    chat = await parse(raw({"messages": AS_CHAT, "tools": [CHAT_TOOL], "seed": 7}), context, parse_chat)
    response = await parsed(context, input=AS_ITEMS, tools=[TOOL])
    assert response.request.prompt_token_ids == chat.request.prompt_token_ids
    assert response.request.params == chat.request.params


async def test_the_count_is_that_of_the_prompt(context):
    fields = {**BODY, "input": AS_ITEMS, "tools": [TOOL, {"type": "web_search"}], "instructions": "Be brief."}
    counted = await parse_only(context, fields)
    assert counted.num_tokens == len((await parsed(context, **fields)).request.prompt_token_ids)
    assert counted.ignored == ("tools[1]",)


async def parse_only(context: Any, fields: dict[str, Any]) -> Any:
    return await parse_request.parse(raw(fields), context, count_prompt, Sender())


async def test_ids_of_items_do_not_reach_the_prompt(context):
    """So that two sessions share the beginning of their prompts."""
    others = [{**item, "id": f"other_{index}"} for index, item in enumerate(AS_ITEMS)]
    assert await prompt(context, input=AS_ITEMS, tools=[TOOL]) == await prompt(context, input=others, tools=[TOOL])


async def test_the_prompt_of_a_turn_begins_with_that_of_the_turn_before(context):
    turns = [2, 6, 7]  # a question, the result of a call, the next question
    texts = [(await prompt(context, input=AS_ITEMS[:end], tools=[TOOL])) for end in turns]
    for shorter, longer in pairwise(texts):
        assert longer.startswith(shorter.removesuffix("<|assistant|>"))


class Kept:
    """Responses that are kept for a test."""

    def __init__(self) -> None:
        self.items: dict[str, list[object]] = {}

    def items_of(self, response_id):
        if response_id not in self.items:
            raise PreviousResponseNotFound("gone", param="previous_response_id")
        return self.items[response_id]

    def begin(self, response_id, items):
        self.items[response_id] = [*items]


async def test_a_request_goes_on_from_a_response_that_is_kept(context):
    kept = Kept()
    parser = partial(parse_response, kept=kept)
    first = await parse(raw({**BODY, "input": AS_ITEMS[:2], "tools": [TOOL]}), context, parser)
    kept.items[first.id] += AS_ITEMS[2:5]  # its output
    fields = {"previous_response_id": first.id, "input": AS_ITEMS[5:6], "tools": [TOOL]}
    second = await parse(raw({**BODY, **fields}), context, parser)
    whole = await parsed(context, input=AS_ITEMS[:6], tools=[TOOL])
    assert second.request.prompt_token_ids == whole.request.prompt_token_ids
    assert kept.items[second.id] == AS_ITEMS[:6]
    fields = {"previous_response_id": second.id, "input": [], "tools": [TOOL]}
    empty = await parse(raw({**BODY, **fields}), context, parser)
    assert empty.request.prompt_token_ids == whole.request.prompt_token_ids
    assert empty.asked.previous_response_id == second.id


async def test_instructions_are_not_inherited(context):
    kept = Kept()
    parser = partial(parse_response, kept=kept)
    first = await parse(raw({**BODY, "instructions": "Be brief."}), context, parser)
    assert kept.items[first.id] == [{"role": "user", "content": "Hi"}]


async def test_nothing_is_kept_by_default(context):
    for given in ("Hi", None):
        with pytest.raises(PreviousResponseNotFound) as caught:
            await parsed(context, previous_response_id="resp_1", input=given)
        assert caught.value.param == "previous_response_id"
        assert caught.value.info().http_status == 400
    assert not (await asked(context, store=True)).store


async def test_a_prompt_alone_can_be_asked_for(context):
    request = await parse(raw(BODY), context, partial(parse_response, is_prompt_only=True))
    assert request.request.is_prompt_only and not (await parsed(context)).request.is_prompt_only


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"input": None}, "input"),
    ({"input": ""}, "input"),
    ({"input": []}, "input"),
    ({"input": 5}, "input"),
    ({"input": [{"role": "user", "content": 5}]}, "input[0].content"),
    ({"input": [{"type": "reasoning"}]}, "input"),
    ({"instructions": 5}, "instructions"),
    ({"previous_response_id": 5}, "previous_response_id"),
    ({"model": 5}, "model"),
    ({"tools": {}}, "tools"),
    ({"tools": [{"type": "function", "name": "a b"}]}, "tools[0].name"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": 5}, "tool_choice"),
    ({"parallel_tool_calls": 1}, "parallel_tool_calls"),
    ({"text": "a"}, "text"),
    ({"text": {"verbosity": "loud"}}, "text.verbosity"),
    ({"text": {"format": {"type": "yaml"}}}, "text.format.type"),
    ({"text": {"format": {"type": "json_schema"}}}, "text.format.schema"),
    ({"text": {"format": {"type": "json_schema", "schema": 5}}}, "text.format.schema"),
    ({"text": {"format": {"type": "json_schema", "schema": {"type": "no type"}}}}, "text.format.schema"),
    ({"text": {"format": {"type": "json_schema", "json_schema": {"schema": {}}}}}, "text.format.json_schema"),
    ({"text": {"format": {"type": "text", "schema": {}}}}, "text.format.schema"),
    ({"reasoning": "high"}, "reasoning"),
    ({"reasoning": {"effort": "most"}}, "reasoning.effort"),
    ({"reasoning": {"summary": "long"}}, "reasoning.summary"),
    ({"include": "a"}, "include"),
    ({"include": ["message.output_text"]}, "include[0]"),
    ({"top_logprobs": 21}, "top_logprobs"),
    ({"top_logprobs": -1}, "top_logprobs"),
    ({"max_output_tokens": 0}, "max_output_tokens"),
    ({"max_output_tokens": -1}, "max_output_tokens"),
    ({"max_output_tokens": 1.5}, "max_output_tokens"),
    ({"truncation": "always"}, "truncation"),
    ({"store": "yes"}, "store"),
    ({"background": 1}, "background"),
    ({"stream": "yes"}, "stream"),
    ({"stream_options": {}}, "stream_options"),
    ({"stream": True, "stream_options": {"slow_reader": "wait"}}, "stream_options.slow_reader"),
    ({"metadata": {"a": 1}}, "metadata[...]"),
    ({"metadata": {str(number): "" for number in range(17)}}, "metadata"),
    ({"metadata": {"x" * 65: ""}}, "metadata"),
    ({"metadata": {"x": "y" * 513}}, "metadata[...]"),
    ({"user": "x" * 513}, "user"),
    ({"safety_identifier": 5}, "safety_identifier"),
    ({"prompt_cache_key": 5}, "prompt_cache_key"),
    ({"max_tool_calls": "5"}, "max_tool_calls"),
    ({"temperature": 3}, "temperature"),
    ({"top_p": -1}, "top_p"),
    ({"stop": [""]}, "stop"),
    ({"priority": 101}, "priority"),
    ({"cache_salt": ""}, "cache_salt"),
    ({"timeout": 0}, "timeout"),
    ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
    ({"tools": [{**TOOL, "strict": True, "parameters": NO_TYPE}]}, "tools[0].parameters"),
    ({"tools": [{"type": "namespace", "name": "n", "tools": [{**TOOL, "parameters": NO_TYPE}]}],
      "tool_choice": "required"}, "tools[0].tools[0].parameters"),
]  # fmt: skip
REFUSED: dict[str, tuple[object, str]] = {
    "background": (True, "stream the response"),
    "conversation": ("conv_1", "send the items as input"),
    "prompt": ({"id": "pmpt_1"}, "send the items as input"),
    "context_management": ([{"type": "compaction"}], "leave it out"),
    "moderation": ({"model": "m"}, "leave it out"),
    "messages": ([{"role": "user", "content": "Hi"}], "send input"),
    "max_tokens": (5, "send max_output_tokens"),
    "reasoning_effort": ("low", "send reasoning.effort"),
    "response_format": ({"type": "json_object"}, "send text.format"),
    "logprobs": (True, "send top_logprobs"),
    "prompt_logprobs": (1, "send top_logprobs"),
    "n": (2, "leave it out"),
    "best_of": (2, "leave it out"),
    "use_beam_search": (True, "leave it out"),
    "echo": (True, "leave it out"),
    "guided_json": ({}, "send text.format"),
}


@pytest.mark.parametrize(("fields", "path"), WRONG, ids=str)
async def test_a_wrong_value_is_named_by_its_path(context, fields, path):
    with pytest.raises(RequestError) as caught:
        await parsed(context, **fields)
    assert caught.value.param == path
    assert caught.value.message.startswith(path)


@pytest.mark.parametrize("name", REFUSED)
async def test_what_would_change_the_answer_is_refused(context, name):
    value, words = REFUSED[name]
    if name == "guided_json":
        value = {"type": "string"}
    with pytest.raises(UnsupportedParameter, match=words) as caught:
        await parsed(context, **{name: value})
    assert caught.value.param == name
    await parsed(context, **{name: None})


async def test_what_is_ignored_is_named(context):
    fields = {
        "loudness": 5,
        "reasoning": {"depth": 5},
        "input": [{"role": "user", "content": "Hi"}, {"type": "web_search_call", "id": "ws_1"}],
        "tools": [TOOL, {"type": "web_search"}],
    }
    assert (await parsed(context, **fields)).ignored == ("loudness", "reasoning.depth", "input[1]", "tools[1]")


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"loudness": 5}, "loudness"),
        ({"tools": [{"type": "web_search"}]}, "tools[0]"),
        ({"input": [{"type": "web_search_call"}, {"role": "user", "content": "Hi"}]}, "input[0]"),
    ],
)
async def test_with_strict_nothing_is_ignored(fields, path):
    context = (await make_app(strict=True)).state.context
    with pytest.raises(RequestError) as caught:
        await parsed(context, **fields)
    assert caught.value.param == path
    await parsed(context)


async def test_a_schema_beside_tools_is_for_what_is_no_call(context):
    form = {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}}
    assert (await parsed(context, text=form, tools=[TOOL])).request.grammar is not None
    required = await parsed(context, text=form, tools=[TOOL], tool_choice="required")
    alone = await parsed(context, tools=[TOOL], tool_choice="required")
    assert required.request.grammar == alone.request.grammar


async def test_a_prompt_that_does_not_fit_is_named_as_input(context):
    with pytest.raises(ContextLengthExceeded, match=f"^This model's maximum context length is {ROOM} tokens") as caught:
        await parsed(context, input="word " * ROOM)
    assert caught.value.param == "input"


HOSTILE: dict[str, dict[str, Any]] = {
    "8,192 items": {"input": [{"role": "user", "content": "Hi"}] * MAX_ITEMS},
    "8,192 calls of one turn": {"input": [{"type": "function_call", "name": "f", "call_id": "c"}] * MAX_ITEMS},
    "a megabyte of arguments": {
        "input": [{"type": "function_call", "name": "f", "call_id": "c", "arguments": '{"a": "' + "x" * 2**20}]
    },
    "a megabyte of numbers as arguments": {
        "input": [{"type": "function_call", "name": "f", "call_id": "c", "arguments": "[" + "1," * 2**19 + "1]"}]
    },
    "256 tools in a namespace": {
        "tools": [
            {"type": "namespace", "name": "n", "tools": [{**TOOL, "name": f"f{number}"} for number in range(200)]}
        ]
    },
    "a deep schema": {"tools": [{**TOOL, "parameters": json.loads('{"properties": {"a": ' * 12 + "{}" + "}}" * 12)}]},
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_a_large_body_is_read_or_an_error_names_the_input(context, name):
    try:
        request = await parsed(context, **HOSTILE[name])
    except RequestError as error:
        assert error.param in ("input", "tools"), error.message
    else:
        assert len(request.request.prompt_token_ids) < ROOM
