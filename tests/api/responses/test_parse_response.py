"""From the body of a request for a response to an engine request, and to what its answer repeats."""

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
from app.api.responses.resource import begun_response
from app.contract.errors import (
    ContextLengthExceeded,
    InvalidValue,
    PreviousResponseNotFound,
    RequestError,
)
from app.contract.sampling_params import MAX_TOKENS
from app.text.calls.tools import MAX_TOOLS
from tests.api.responses.parsing import (
    BODY,
    CHAT_TOOL,
    ROOM,
    SCHEMA,
    TOOL,
    asked,
    context_with_room,
    engine_with_room,
    parsed,
    prompt,
)
from tests.api.serving import make_app, parse, raw


@pytest.fixture
async def context():
    return await context_with_room()


async def test_by_default_the_answer_repeats_defaults(context):
    request = await parsed(context)
    assert request.asked == AskedResponse(
        response_id=request.id,
        created_at=request.created,
        model="guide",
        temperature=request.request.params.temperature,
        top_p=request.request.params.top_p,
        tools=[],
    )
    assert request.id.startswith("resp_") and len(request.id) == len("resp_") + 32


async def test_the_answer_repeats_texts_tools_and_choice_as_they_were_sent(context):
    form = {"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": True}
    fields: dict[str, Any] = {
        "instructions": "Be brief.",
        "tools": [{"description": None, "strict": False, **TOOL}, {"type": "web_search"}],
        "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]},
        "text": {"format": form, "verbosity": "low"},
        "max_output_tokens": 50_000_000,
        "truncation": "auto",
        "parallel_tool_calls": False,
    }
    found = await asked(context, **fields)
    assert {name: getattr(found, name) for name in fields} == fields
    assert found.called.of("f") == CalledTool("function", "f")
    assert (await asked(context, text={"verbosity": "low", "format": None, "more": 1})).text == {
        "format": {"type": "text"}, "verbosity": "low",
    }  # fmt: skip


async def test_the_answer_repeats_what_was_resolved_where_its_readers_require_it(context):
    found = await asked(context, tools=[{"type": "function", "name": "f"}], presence_penalty=0.5)
    assert found.tools == [{"type": "function", "name": "f", "description": None, "parameters": None, "strict": False}]
    assert (found.presence_penalty, found.frequency_penalty) == (0.5, 0.0)


async def test_the_first_events_have_the_form_of_the_text_without_its_schema(context):
    form = {"type": "json_schema", "name": "n", "schema": SCHEMA, "description": "A description."}
    found = await asked(context, text={"format": form, "verbosity": "low"})
    assert found.short_text == {"format": {"type": "json_schema", "name": "n", "schema": {}}, "verbosity": "low"}
    assert begun_response(found, "in_progress").text == found.short_text


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
    counted = await count(context, fields)
    assert counted.num_tokens == len((await parsed(context, **fields)).request.prompt_token_ids)
    assert counted.ignored == ("tools[1]",)


async def count(context: Any, fields: dict[str, Any]) -> Any:
    """The count of a body's prompt."""
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

    def num_bytes_of(self, response_id: str) -> int:
        return 0

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


async def test_a_schema_beside_tools_is_for_what_is_no_call(context):
    form = {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}}
    assert (await parsed(context, text=form, tools=[TOOL])).request.grammar is not None
    required = await parsed(context, text=form, tools=[TOOL], tool_choice="required")
    alone = await parsed(context, tools=[TOOL], tool_choice="required")
    assert required.request.grammar == alone.request.grammar


async def test_with_truncation_a_prompt_that_is_too_long_loses_its_oldest_turns():
    context = (await make_app()).state.context
    turns = [
        item
        for number in range(12)
        for item in (
            {"role": "user", "content": f"Q{number} {'word ' * 200}"},
            {"role": "assistant", "content": "Ho."},
        )
    ]
    fields = {"instructions": "Be brief.", "input": [*turns, {"role": "user", "content": "And now?"}]}
    with pytest.raises(ContextLengthExceeded):
        await parsed(context, **fields)
    text = await prompt(context, **fields, truncation="auto")
    assert "Be brief." in text and "And now?" in text and "Q11 " in text and "Q0 " not in text
    counted = await count(context, {**fields, "truncation": "auto"})
    assert counted.num_tokens == len((await parsed(context, **fields, truncation="auto")).request.prompt_token_ids)
    assert (await count(context, fields)).num_tokens > 2048 > counted.num_tokens
    long = {"instructions": "Be brief.", "input": "word " * 4000, "truncation": "auto"}
    assert (await count(context, long)).num_tokens > 4000, "what must be kept is counted too"


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
            {"type": "namespace", "name": "n", "tools": [{**TOOL, "name": f"f{number}"} for number in range(MAX_TOOLS)]}
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
