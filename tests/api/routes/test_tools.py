"""Answers with calls of tools and with reasoning: streamed, whole and on quire.v1, however the text comes in pieces."""

import json
from typing import Any

import pytest

from app.text.answer.answer_format import AnswerParser
from tests.api.chat_client import open_chat
from tests.api.serving import client_of, make_app, with_grammars
from tests.fakes import FakeEngine, Script

USER = {"role": "user", "content": "How warm is it?"}
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "The weather.", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]  # fmt: skip
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Ab<b>é"}}\n</tool_call>'
SECOND = '<tool_call>\n{"name": "weather", "arguments": {}}\n</tool_call>'
ANSWERS = {
    "text": "It is warm.",
    "call": CALL,
    "text and calls": f"Let me see.\n{CALL}\n{SECOND}\n",
    "reasoning and a call": f"<think>\nI need\n\nthe weather.\n</think>\n\n{CALL}",
    "reasoning and text": "<think>Hm.</think>\n\nIt is warm. ",
    "reasoning alone": "<think>Hm. ",
    "a mark that begins nothing": "I write <tool_call> and </tool_call>.",
    "a broken call": '<tool_call>{"name": "weather", "arguments": {"city": 3',
}


def pieces(text: str, size: int) -> list[str]:
    return [text[start : start + size] for start in range(0, len(text), size)]


async def app_with(*answers: str, size: int = 3, **settings: Any):
    first, *others = [pieces(answer, size) for answer in answers]
    engine = FakeEngine(Script(answer=first, others=others))
    return await make_app(engine, reasoning_parser="think", **settings), engine


async def whole(app, **body: Any) -> dict[str, Any]:
    async with client_of(app) as client:
        response = await client.post("/v1/chat/completions", json={"messages": [USER], **body})
    assert response.status_code == 200, response.text
    return response.json()


async def streamed(app, **body: Any) -> list[dict[str, Any]]:
    """The chunks of a stream."""
    body = {"messages": [USER], "stream": True, "stream_options": {"include_usage": True}, **body}
    async with client_of(app) as client:
        response = await client.post("/v1/chat/completions", json=body)
    lines = [line.removeprefix("data: ") for line in response.text.split("\n\n")]
    return [json.loads(line) for line in lines if line.startswith("{")]


def message_of(chunks: list[dict[str, Any]], choice: int = 0) -> tuple[dict[str, Any], str]:
    """What a client accumulates of one choice: a message as a whole answer has it, and the finish reason."""
    content, reasoning, calls, reason = "", "", {}, None
    for one in [one for chunk in chunks for one in chunk["choices"] if one["index"] == choice]:
        delta = one["delta"]
        content += delta.get("content") or ""
        reasoning += delta.get("reasoning_content") or ""
        assert len({call["index"] for call in delta.get("tool_calls", ())}) == len(delta.get("tool_calls", ()))
        for call in delta.get("tool_calls", ()):
            function = call["function"]
            if "id" in call:
                assert call["index"] == len(calls)
                calls[call["index"]] = {**call, "function": dict(function)}
            else:
                calls[call["index"]]["function"]["arguments"] += function["arguments"]
        reason = one["finish_reason"] or reason
    message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
    if calls:
        listed = [{k: v for k, v in call.items() if k != "index"} for call in calls.values()]
        message |= {"content": content or None, "tool_calls": listed}
    return message | ({"reasoning_content": reasoning} if reasoning else {}), reason


def without_ids(message: dict[str, Any]) -> dict[str, Any]:
    calls = [{**call, "id": "call_"} for call in message.get("tool_calls", ())]
    assert all(call["id"].startswith("call_") and len(call["id"]) == 29 for call in message.get("tool_calls", ()))
    return {**message, **({"tool_calls": calls} if calls else {})}


@pytest.mark.parametrize("size", [1, 5, 1000])
@pytest.mark.parametrize("name", ANSWERS)
async def test_streamed_and_whole_answers_agree(name, size):
    app, _ = await app_with(ANSWERS[name], size=size)
    answer = await whole(app, tools=TOOLS)
    chunks = await streamed(app, tools=TOOLS)
    message, reason = message_of(chunks)
    assert without_ids(message) == without_ids(answer["choices"][0]["message"])
    assert reason == answer["choices"][0]["finish_reason"]
    assert reason == ("tool_calls" if message.get("tool_calls") and name != "a broken call" else "stop")
    assert chunks[-1]["usage"] == answer["usage"]


@pytest.mark.parametrize("size", [1, 5, 1000])
@pytest.mark.parametrize("name", ANSWERS)
async def test_the_frames_of_quire_v1_have_the_same(name, size):
    app, engine = await app_with(ANSWERS[name], size=size)
    answer = (await whole(app, tools=TOOLS))["choices"][0]
    async with open_chat(engine, reasoning_parser="think") as chat:
        await chat.start(tools=TOOLS)
        frames = await chat.receive_until("done")
    deltas = [frame for frame in frames if frame["t"] == "delta"]
    found: dict[int, dict[str, str]] = {}
    for piece in [piece for delta in deltas for piece in delta.get("tool", ())]:
        if "name" in piece:
            assert piece["k"] == len(found)
            found[piece["k"]] = {"name": piece["name"], "arguments": ""}
        else:
            found[piece["k"]]["arguments"] += piece["a"]
    message = answer["message"]
    assert "".join(delta["x"] for delta in deltas) == (message["content"] or "")
    assert "".join(delta.get("r", "") for delta in deltas) == message.get("reasoning_content", "")
    assert list(found.values()) == [call["function"] for call in message.get("tool_calls", ())]
    assert [frame["finish_reason"] for frame in frames if frame["t"] == "finish"] == [answer["finish_reason"]]
    num_tokens = len(pieces(ANSWERS[name], size))
    assert sum(delta["k"] for delta in deltas) == num_tokens
    assert [delta["n"] for delta in deltas if delta["k"]] == list(range(1, num_tokens + 1))


async def test_a_cancelled_stream_sends_no_text_that_was_held_back():
    """What may begin a call is held back until the next piece says what it is."""
    engine = FakeEngine(Script(answer=["Hello", "<tool_call>", '{"na', 'me"']), held=True)
    async with open_chat(engine, reasoning_parser="think") as chat:
        await chat.start(tools=TOOLS)
        await chat.receive_until("accepted")
        engine.step(3)
        await chat.receive_until("delta")
        await chat.send(t="cancel", id="a")
        frames = await chat.receive_until("done")
    assert "".join(frame["x"] for frame in frames if frame["t"] == "delta") == ""
    assert [frame["finish_reason"] for frame in frames if frame["t"] == "finish"] == ["cancelled"]


async def test_calls_are_read_as_calls():
    app, _ = await app_with(ANSWERS["text and calls"])
    message = (await whole(app, tools=TOOLS))["choices"][0]["message"]
    assert message["content"] == "Let me see."
    assert [call["function"] for call in message["tool_calls"]] == [
        {"name": "weather", "arguments": '{"city": "Ab<b>é"}'},
        {"name": "weather", "arguments": "{}"},
    ]
    assert len({call["id"] for call in message["tool_calls"]}) == 2


async def test_content_is_null_beside_calls_alone():
    app, _ = await app_with(CALL)
    choice = (await whole(app, tools=TOOLS))["choices"][0]
    assert choice["message"]["content"] is None
    assert choice["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("body", [{}, {"tools": TOOLS, "tool_choice": "none"}, {"tools": []}])
async def test_calls_are_text_without_tools(body):
    app, _ = await app_with(CALL)
    choice = (await whole(app, **body))["choices"][0]
    assert choice["message"] == {"role": "assistant", "content": CALL, "refusal": None}
    assert choice["finish_reason"] == "stop"


async def test_parsers_can_be_disabled():
    engine = FakeEngine(Script(answer=[ANSWERS["reasoning and a call"]]))
    app = await make_app(engine, tool_parser="none", reasoning_parser="none")
    choice = (await whole(app, tools=TOOLS))["choices"][0]
    assert choice["message"]["content"] == ANSWERS["reasoning and a call"]
    assert choice["finish_reason"] == "stop"


async def test_an_answer_that_is_too_long_ends_with_length():
    app, engine = await app_with(CALL)
    engine.port.script.answer = None
    answer = await whole(app, tools=TOOLS, max_tokens=2)
    assert answer["choices"][0]["finish_reason"] == "length"


async def test_each_choice_has_its_own_parser():
    app, _ = await app_with(CALL, "It is warm.", ANSWERS["reasoning and text"])
    answer = await whole(app, tools=TOOLS, n=3)
    assert [choice["finish_reason"] for choice in answer["choices"]] == ["tool_calls", "stop", "stop"]
    assert [choice["message"]["content"] for choice in answer["choices"]] == [None, "It is warm.", "It is warm. "]
    chunks = await streamed(app, tools=TOOLS, n=3)
    for choice in answer["choices"]:
        message, reason = message_of(chunks, choice["index"])
        assert without_ids(message) == without_ids(choice["message"])
        assert reason == choice["finish_reason"]


async def test_a_delta_has_one_chunk():
    """A stream can be resumed between chunks only, so all that a delta completes is in one."""
    app, _ = await app_with(ANSWERS["reasoning and a call"], size=10**6)
    chunks = await streamed(app, tools=TOOLS)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]
    assert [sorted(delta) for delta in deltas] == [["content", "role"], ["reasoning_content", "tool_calls"], []]
    [call] = deltas[1]["tool_calls"]
    assert call["function"] == {"name": "weather", "arguments": '{"city": "Ab<b>é"}'}


async def test_a_stream_that_may_be_calls_alone_begins_without_a_content():
    app, _ = await app_with(CALL)
    chunks = await streamed(app, tools=TOOLS)
    first, *rest = [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]
    assert first == {"role": "assistant", "content": None}
    assert not any("content" in delta for delta in rest)
    assert (await streamed(app))[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}


async def test_reasoning_may_have_both_names():
    app, _ = await app_with(ANSWERS["reasoning and text"], reasoning_field="both")
    message = (await whole(app))["choices"][0]["message"]
    assert message["reasoning"] == message["reasoning_content"] == "Hm."
    deltas = [chunk["choices"][0]["delta"] for chunk in await streamed(app) if chunk["choices"]]
    assert "".join(delta.get("reasoning", "") for delta in deltas) == "Hm."


async def test_reasoning_can_be_left_out_and_nothing_else():
    app, _ = await app_with(ANSWERS["reasoning and text"], reasoning_field="both")
    with_it = (await whole(app))["choices"][0]["message"]
    without = (await whole(app, include_reasoning=False))["choices"][0]["message"]
    assert without == {name: value for name, value in with_it.items() if not name.startswith("reasoning")}
    chunks = await streamed(app, include_reasoning=False)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]
    assert "".join(delta.get("content", "") for delta in deltas) == without["content"]
    assert not any(name.startswith("reasoning") for delta in deltas for name in delta)


async def test_logprobs_stay_with_their_tokens():
    app, _ = await app_with(CALL)
    answer = (await whole(app, tools=TOOLS, logprobs=True))["choices"][0]
    chunks = await streamed(app, tools=TOOLS, logprobs=True)
    entries = [
        entry for chunk in chunks for one in chunk["choices"] if one["logprobs"] for entry in one["logprobs"]["content"]
    ]
    assert entries == answer["logprobs"]["content"]
    assert len(entries) == len(pieces(CALL, 3))


async def test_usage_counts_reasoning_if_the_marks_are_tokens():
    """The marks of `guide` are no tokens: nothing is counted, and nothing is claimed."""
    app, _ = await app_with(ANSWERS["reasoning and text"])
    assert "completion_tokens_details" not in (await whole(app))["usage"]


async def app_with_grammars(engine: FakeEngine, tool_parser: str = "auto"):
    return with_grammars(await make_app(engine, tool_parser=tool_parser))


async def test_a_required_call_has_a_grammar():
    engine = FakeEngine(Script(answer=[CALL]))
    app = await app_with_grammars(engine)
    await whole(app, tools=TOOLS)
    await whole(app, tools=TOOLS, tool_choice="required")
    await whole(app, tools=TOOLS, tool_choice="required", response_format={"type": "json_object"})
    free, required, beside = [request.grammar for request in engine.requests]
    assert free is None
    assert required.kind == "calls"
    assert "weather" in required.source
    assert beside == required, "agents send it with every request, for the text after the calls"


@pytest.mark.parametrize(
    "content", ["<think>abc", [{"type": "text", "text": "<think>"}, {"type": "text", "text": "a"}]]
)
async def test_a_thought_that_is_continued_is_reasoning(content):
    app, _ = await app_with(" and more.</think>\n\nIt is warm.")
    body = {"messages": [USER, {"role": "assistant", "content": content}], "continue_final_message": True}
    message = (await whole(app, **body))["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == (" and more.".lstrip(), "It is warm.")
    assert message_of(await streamed(app, **body))[0] == message


async def test_a_whole_answer_is_parsed_as_it_comes(monkeypatch):
    """Not all of it at once, which would keep the loop waiting."""
    seen: list[int] = []

    def feed(self, text, feed=AnswerParser.feed):
        seen.append(len(text))
        return feed(self, text)

    monkeypatch.setattr(AnswerParser, "feed", feed)
    text = CALL.replace("Ab", "Ab" * 5000)
    app, _ = await app_with(text, size=100)
    [call] = (await whole(app, tools=TOOLS))["choices"][0]["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"city": "Ab" * 5000 + "<b>é"}
    assert sum(seen) == len(text)
    assert max(seen) < len(text) / 2


SCHEMA = {"type": "object", "properties": {"warm": {"type": "boolean"}}, "required": ["warm"]}
FORMAT = {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}}


def with_parameters(parameters: Any, **fields: Any) -> list[dict[str, Any]]:
    function = {"name": "f", "parameters": parameters, **fields}
    return [*TOOLS, {"type": "function", "function": function}]


async def test_an_answer_is_a_call_or_what_the_response_format_asks_for():
    engine = FakeEngine(Script(answer=[CALL]))
    app = await app_with_grammars(engine)
    await whole(app, tools=TOOLS, **FORMAT)
    grammars, tokenizer = app.state.context.grammars, app.state.context.text.tokenizer
    for text, is_right in (
        ('{"warm": true}', True),
        (CALL, True),
        ('{"warm": 3}', False),
        ("It is warm.", False),
        (f"Well. {CALL}", False),
    ):
        matcher = grammars.matcher(engine.requests[0].grammar)
        token_ids = tokenizer.encode(text, add_special_tokens=False)
        assert (matcher.try_consume_tokens(token_ids) == len(token_ids) and matcher.is_accepting()) is is_right, text


@pytest.mark.parametrize(
    ("name", "parameters", "words"),
    [
        ("hermes", {"properties": {"a": {"not": {"const": 1}}}}, "cannot be enforced"),
        ("hermes", {"properties": {"a": {"type": "string", "pattern": "(?=a)b"}}}, ""),
        ("glm", {"properties": {"a": {"type": "integer", "not": {"const": 1}}}}, "#/properties/a/not is"),
        ("glm", {"properties": {"a": {"type": "string", "pattern": "(?=a)b"}}}, ""),
        ("glm", {"properties": {"a b</arg_key>": {}}}, "cannot write"),
        ("hermes", {"properties": {"a": {"$ref": "#"}}, "required": ["a"]}, "can never be completed"),
        (
            "glm",
            {"properties": {"a": {"type": "array", "items": {"$ref": "#/properties/a"}, "minItems": 1}}},
            "never be",
        ),
        ("glm", {"anyOf": [{"required": ["a"]}]}, "'anyOf'"),
        ("lfm2", {"anyOf": [{"required": ["a"]}]}, "'anyOf'"),
        ("qwen3_coder", {"required": True}, "must be a list of names"),
        ("pythonic", {"properties": ["a"]}, "must be an object of JSON schemas"),
    ],
)
@pytest.mark.parametrize("way", ["required", "strict", "beside"])
async def test_a_schema_that_is_rejected_is_named(way, name, parameters, words):
    engine = FakeEngine()
    app = await app_with_grammars(engine, name)
    tools = with_parameters(parameters, strict=way != "required")
    body = {"tools": tools, **({"tool_choice": "required"} if way == "required" else FORMAT if way == "beside" else {})}
    async with client_of(app) as client:
        response = await client.post("/v1/chat/completions", json={"messages": [USER], **body})
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (
        400, "invalid_value", "tools[1].function.parameters",
    )  # fmt: skip
    assert words in error["message"]
    assert engine.requests == []
    is_malformed = words.startswith("must be")  # found before there is a grammar
    assert app.state.context.grammars.failures["refused"] == (not is_malformed)


async def test_a_response_format_that_is_rejected_beside_tools_is_named():
    app = await app_with_grammars(FakeEngine())
    wrong = {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"not": {}}}}}
    async with client_of(app) as client:
        response = await client.post("/v1/chat/completions", json={"messages": [USER], "tools": TOOLS, **wrong})
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, "response_format.json_schema.schema")


async def test_unknown_fields_of_tools_are_named_or_rejected():
    tools = with_parameters({}, cache=1)
    app, _ = await app_with(CALL)
    async with client_of(app) as client:
        response = await client.post("/v1/chat/completions", json={"messages": [USER], "tools": tools})
    assert response.headers["x-quire-ignored"] == "tools%5B1%5D.function.cache"
    strict, _ = await app_with(CALL, strict=True)
    async with client_of(strict) as client:
        response = await client.post("/v1/chat/completions", json={"messages": [USER], "tools": tools})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "tools[1].function.cache")
