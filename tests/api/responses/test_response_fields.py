"""The fields of a request for a response: each acts, is repeated, says nothing, is refused or ignored, or is wrong."""

from typing import Any

import msgspec
import pytest

from app.api.anthropic.message_fields import MessagesBody
from app.api.body.schemas import ChatBody
from app.api.responses.response_fields import AS_ON_CHAT, ResponsesBody
from app.contract.errors import RequestError, UnsupportedParameter
from tests.api.responses.parsing import NO_TYPE, TOOL, asked, context_with_room, outcome, parsed
from tests.api.serving import make_app

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
    ({"text": {"format": {"type": "json_schema", "schema": {}, "name": "x" * 513}}}, "text.format.name"),
    ({"text": {"format": {"type": "json_schema", "schema": {}, "description": "x" * 2**15}}},
     "text.format.description"),
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


@pytest.fixture
async def context():
    return await context_with_room()


def test_every_field_of_the_body_has_a_test():
    assert set(ResponsesBody.__struct_fields__) == {*ACTING, *REPEATED, *ELSEWHERE, "store", "background", "truncation"}


@pytest.mark.parametrize("kind", [ResponsesBody, MessagesBody])
def test_the_fields_of_a_chat_have_its_types(kind):
    """They are written once for each body: fields of a common base would come first, and the order is the clients'."""
    of_chat = {field.name: field.type for field in msgspec.structs.fields(ChatBody)}
    own = {"stream_options", "tools", "tool_choice", "reasoning", "messages", "max_tokens", "top_logprobs"}
    shared = {field.name: field.type for field in msgspec.structs.fields(kind) if field.name in of_chat.keys() - own}
    assert shared == {name: of_chat[name] for name in shared}
    assert kind is MessagesBody or set(AS_ON_CHAT) - own <= shared.keys()


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
