"""What the answer must be, in the words of OpenAI, vLLM and others: one grammar, and errors that name the field."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
import pytest_asyncio
import websockets
from starlette.applications import Starlette

from app.api.app import create_app
from app.api.body.parse_chat import parse_chat
from app.api.body.parse_completion import parse_completion
from app.config.settings import make_config
from app.contract.engine_status import EngineState
from app.contract.errors import InvalidValue, RequestError
from app.contract.grammar import Grammar, GrammarKind
from app.engine.thread import EngineThread
from app.observe.metrics import Metrics
from app.streaming.async_engine import AsyncEngine
from app.text.grammar import compiled, gbnf
from app.text.grammar.cache import GrammarCache
from app.text.grammar.compile import compile_grammar
from app.text.grammar.vocabulary import GrammarVocabulary
from tests.api.serving import HANG_S, client_of, load_text, make_app, parse, raw, serving, until, with_grammars

SCHEMA = {
    "type": "object",
    "properties": {"b": {"type": "integer"}, "a": {"enum": ["x", "y"]}},
    "required": ["b", "a"],
    "additionalProperties": False,
}
ANY_OBJECT = '{"type":"object"}'
SOURCE = json.dumps(SCHEMA, separators=(",", ":"))
MESSAGES = [{"role": "user", "content": "hi"}]
CHAT = "/v1/chat/completions"


@pytest_asyncio.fixture
async def app() -> Starlette:
    """The application over a fake engine, with the vocabulary of `guide`."""
    return with_grammars(await make_app())


async def grammar(app: Starlette, **fields: Any) -> Grammar | None:
    """The grammar of a chat with these fields, which must be that of a completion, too."""
    context = app.state.context
    chat = await parse(raw({"messages": MESSAGES, **fields}), context, parse_chat)
    completion = await parse(raw({"prompt": "hi", **fields}), context, parse_completion)
    assert chat.request.grammar == completion.request.grammar
    assert (chat.lease is None) == (chat.request.grammar is None)
    return chat.request.grammar


def schema_format(schema: Any) -> dict[str, Any]:
    """OpenAI's way to ask for a schema."""
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}


@pytest.mark.parametrize(
    ("fields", "kind", "source"),
    [
        ({"response_format": {"type": "json_object"}}, GrammarKind.JSON_SCHEMA, '{"type":"object"}'),
        ({"response_format": schema_format(SCHEMA)}, GrammarKind.JSON_SCHEMA, SOURCE),
        ({"response_format": {"type": "json_object", "schema": SCHEMA}}, GrammarKind.JSON_SCHEMA, SOURCE),
        ({"structured_outputs": {"json": SCHEMA}}, GrammarKind.JSON_SCHEMA, SOURCE),
        ({"structured_outputs": {"json": json.dumps(SCHEMA), "regex": None}}, GrammarKind.JSON_SCHEMA, SOURCE),
        ({"structured_outputs": {"json_object": True}}, GrammarKind.JSON_SCHEMA, '{"type":"object"}'),
        ({"structured_outputs": {"regex": "a+"}}, GrammarKind.REGEX, "a+"),
        ({"structured_outputs": {"regex": "a+", "json": None, "json_object": False}}, GrammarKind.REGEX, "a+"),
        ({"structured_outputs": {"json_object": True, "structural_tag": None}}, GrammarKind.JSON_SCHEMA, ANY_OBJECT),
        ({"structured_outputs": {"regex": "a+", "json_object": False, "further": 1}}, GrammarKind.REGEX, "a+"),
        ({"structured_outputs": {"choice": ["a", "b", "a"]}}, GrammarKind.CHOICE, '["a","b"]'),
        ({"structured_outputs": {"grammar": 'start: "a"'}}, GrammarKind.LARK, 'start: "a"'),
        ({"guided_json": SCHEMA}, GrammarKind.JSON_SCHEMA, SOURCE),
        ({"guided_regex": "a+"}, GrammarKind.REGEX, "a+"),
        ({"guided_choice": ["a"]}, GrammarKind.CHOICE, '["a"]'),
        ({"guided_grammar": 'start: "a"'}, GrammarKind.LARK, 'start: "a"'),
        ({"json_schema": SOURCE}, GrammarKind.JSON_SCHEMA, SOURCE),
        ({"json_schema": SCHEMA}, GrammarKind.JSON_SCHEMA, SOURCE),
        ({"regex": "a+"}, GrammarKind.REGEX, "a+"),
        ({"ebnf": 'start: "a"'}, GrammarKind.LARK, 'start: "a"'),
        ({"grammar": 'start: "a"'}, GrammarKind.LARK, 'start: "a"'),
    ],
    ids=str,
)
async def test_every_name_becomes_one_grammar(app: Starlette, fields: dict, kind: GrammarKind, source: str):
    assert await grammar(app, **fields) == Grammar(kind, source)


async def test_gbnf_is_told_by_its_sign(app: Starlette):
    found = await grammar(app, grammar='root ::= "a" | "b"')
    assert found is not None and found.kind is GrammarKind.LARK and "::=" not in found.source


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"response_format": {"type": "text"}},
        {"response_format": {"type": "text", "json_schema": None}},
        {"response_format": None, "guided_json": None, "regex": None},
    ],
    ids=str,
)
async def test_without_a_wish_there_is_no_grammar(app: Starlette, fields: dict):
    assert await grammar(app, **fields) is None


RF = "response_format.json_schema.schema"
ENDLESS = {"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]}
DEEP: dict[str, Any] = {"type": "integer"}
for _ in range(40):
    DEEP = {"type": "object", "properties": {"a": DEEP}}


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"response_format": {"type": "yaml"}}, "response_format.type", "must be one of text, json_object"),
        ({"response_format": {}}, "response_format.type", "must be one of"),
        ({"response_format": {"type": 5}}, "response_format.type", "must be one of text, json_object"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "missing"),
        (
            {"response_format": {**schema_format({}), "json_schema": {"schema": {}, "strict": 1}}},
            "response_format.json_schema.strict",
            "Expected `bool | null`",
        ),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, RF, "missing"),
        ({"response_format": schema_format(5)}, RF, "got `int`"),
        ({"response_format": schema_format("{")}, RF, "is not JSON"),
        ({"response_format": schema_format({"type": "foo"})}, RF, "Invalid type: foo"),
        ({"response_format": schema_format({"items": {"not": {"const": 1}}})}, RF, "#/items/not is {"),
        ({"response_format": schema_format(False)}, RF, "no text satisfies"),
        ({"response_format": schema_format(json.dumps(DEEP))}, RF, "nested more than 32"),
        ({"structured_outputs": {}}, "structured_outputs", "has nothing; set exactly one"),
        ({"structured_outputs": {"json": {}, "regex": "a"}}, "structured_outputs", "json and regex"),
        ({"structured_outputs": {"zzz": 1}}, "structured_outputs", "only 'zzz', which is unknown; set one of json"),
        ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs.structural_tag", "not supported"),
        ({"structured_outputs": {"whitespace_pattern": " "}}, "structured_outputs.whitespace_pattern", "not supported"),
        ({"structured_outputs": {"json": {}, "regex": 0}}, "structured_outputs.regex", "got `int`"),
        ({"structured_outputs": {"json_object": 1}}, "structured_outputs.json_object", "got `int`"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice", "1 to 512"),
        ({"structured_outputs": {"regex": ""}}, "structured_outputs.regex", "must be a text"),
        ({"guided_choice": ["a" * 257]}, "guided_choice", "1 to 256 bytes"),
        ({"guided_choice": []}, "guided_choice", "1 to 512"),
        ({"guided_regex": "(?=a)b"}, "guided_regex", "Look-around"),
        ({"regex": r"(a)\1"}, "regex", "Backreferences"),
        ({"regex": r"[^\s\S]"}, "regex", "No text satisfies"),
        ({"regex": "a**("}, "regex", "Unclosed group"),
        ({"regex": "a" * 70_000}, "regex", "at most 65536"),
        ({"grammar": "start: b"}, "grammar", "unknown name"),
        ({"grammar": "root ::= ("}, "grammar", "no GBNF"),
        ({"structured_outputs": {"grammar": 'root ::= "a" root'}}, "structured_outputs.grammar", "the rule 'root'"),
        ({"ebnf": 'root ::= "a"{1000000}'}, "ebnf", "ebnf repeats a part 1000000 times; at most 100000"),
        ({"guided_grammar": 'start: "a" start'}, "guided_grammar", "guided_grammar can never be completed: the rule"),
        ({"guided_json": ENDLESS}, "guided_json", "rejected: The schema can never be completed: '#' requires"),
        ({"response_format": schema_format({"type": "integer", "minimum": 1e40})}, RF, "at most 18 digits"),
        ({"json_schema": '{"type": "number", "maximum": 1e308}'}, "json_schema", "at most 18 digits"),
        ({"ebnf": "\n".join(f'r{i} ::= "a"' for i in range(401))}, "ebnf", "401 rules"),
        ({"guided_grammar": "root ::= " + "(" * 100 + '"a"' + ")" * 100}, "guided_grammar", "nested brackets"),
        ({"regex": "a", "guided_json": {}}, "regex", "send one of them"),
        ({"regex": "a", "response_format": {"type": "json_object"}}, "response_format", "send one of them"),
        ({"regex": "a", "min_tokens": 1}, "min_tokens", "structured outputs"),
        ({"regex": "a", "ignore_eos": True}, "ignore_eos", "structured outputs"),
        ({"regex": "a", "use_beam_search": True}, "use_beam_search", "structured outputs"),
        ({"thinking_token_budget": 5}, "thinking_token_budget", "marks its reasoning"),
        ({"thinking_token_budget": -2}, "thinking_token_budget", "between 0 and"),
    ],
    ids=lambda value: str(value)[:60],
)
async def test_a_wrong_wish_is_rejected_with_the_clients_own_field(
    app: Starlette, fields: dict, param: str, words: str
):
    with pytest.raises(RequestError) as caught:
        await grammar(app, **fields)
    assert caught.value.param == param and caught.value.http_status == 400
    assert words in caught.value.message, caught.value.message


async def test_unknown_options_are_ignored_by_their_paths_and_rejected_if_strict():
    body = {"messages": MESSAGES, "structured_outputs": {"json": {"type": "object", "x": 1}, "b": 2}}
    for strict in (False, True):
        made = with_grammars(await make_app(strict=strict))
        async with client_of(made) as client:
            answer = await client.post(CHAT, json=body)
        if strict:
            assert answer.json()["error"]["param"] == "structured_outputs.b"
        else:
            assert answer.headers["x-quire-ignored"] == "structured_outputs.b"


async def test_the_loop_serves_others_while_a_grammar_is_compiled(app: Starlette, monkeypatch: pytest.MonkeyPatch):
    begun, go_on = threading.Event(), threading.Event()
    threads: list[threading.Thread] = []

    def held(grammar: Grammar, vocabulary: GrammarVocabulary, step_fuel: int) -> object:
        threads.append(threading.current_thread())
        begun.set()
        go_on.wait(HANG_S)
        return compile_grammar(grammar, vocabulary, step_fuel)

    monkeypatch.setattr(compiled, "compile_grammar", held)
    async with client_of(app) as client:
        task = asyncio.create_task(client.post(CHAT, json={"messages": MESSAGES, "regex": "a+"}))
        try:
            await until(begun.is_set)
            others = [await client.post(CHAT, json={"messages": MESSAGES}), await client.get("/livez")]
            assert [other.status_code for other in others] == [200, 200] and not task.done()
        finally:
            go_on.set()
        assert (await task).status_code == 200
    assert threads and threading.main_thread() not in threads


async def test_a_grammar_is_converted_once_for_all_prompts_of_a_body(app: Starlette, monkeypatch: pytest.MonkeyPatch):
    converted = []
    convert = gbnf.lark_of_gbnf
    monkeypatch.setattr(gbnf, "lark_of_gbnf", lambda text: converted.append(text) or convert(text))
    source = 'root ::= "a" | "b"'
    parsed = await parse(raw({"prompt": ["a", [5], "c"], "grammar": source}), app.state.context, parse_completion)
    assert converted == [source] and len(parsed.requests) == 3
    assert {each.grammar for each in parsed.requests} == {parsed.request.grammar} != {None}


WAYS: list[dict[str, Any]] = [
    {"response_format": {"type": "json_object"}},
    {"response_format": schema_format({"const": 1})},
    {"response_format": {"type": "json_object", "schema": {"const": 2}}},
    {"structured_outputs": {"json": {"const": 3}}},
    {"structured_outputs": {"regex": "a4"}},
    {"structured_outputs": {"choice": ["a5"]}},
    {"structured_outputs": {"grammar": 'start: "a6"'}},
    {"guided_json": {"const": 7}},
    {"guided_regex": "a8"},
    {"guided_choice": ["a9"]},
    {"guided_grammar": 'root ::= "a10"'},
    {"json_schema": {"const": 11}},
    {"regex": "a12"},
    {"ebnf": 'root ::= "a13"'},
    {"grammar": 'start: "a14"'},
]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}, "strict": True}}
TOOL_WAYS: list[dict[str, Any]] = [
    {"tools": [TOOL]},
    {"tools": [TOOL], "tool_choice": "required"},
    {"tools": [TOOL], "regex": "a15"},
    {"tools": [TOOL], "grammar": 'root ::= "a16"'},
    {"tools": [TOOL], "parallel_tool_calls": False},
]


@pytest.mark.parametrize(("route", "ways"), [(CHAT, [*WAYS, *TOOL_WAYS]), ("/v1/completions", WAYS)])
async def test_no_grammar_is_compiled_before_its_trial(
    route: str, ways: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
):
    made, tried = await make_app(tool_parser="hermes"), set[Grammar]()
    context = made.state.context
    context.grammars = context.grammar_trials._cache = GrammarCache(is_served=True)
    with_grammars(made)
    outcome = context.grammar_trials._outcome

    async def tried_first(grammar: Grammar, *others: Any) -> object:
        tried.add(grammar)
        return await outcome(grammar, *others)

    monkeypatch.setattr(context.grammar_trials, "_outcome", tried_first)
    async with client_of(made) as client:
        for number, fields in enumerate(ways):
            response = await client.post(route, json={"messages": MESSAGES, "prompt": "hi", **fields})
            assert response.status_code == 200, response.text
            assert len(tried) == number + 1
    assert tried == set(context.grammars.entries.by_grammar)
    context.close()


async def test_metrics_count_grammars(app: Starlette):
    await grammar(app, regex="a+")
    with pytest.raises(InvalidValue):
        await grammar(app, regex="(?=a)")
    async with client_of(app) as client:
        text = (await client.get("/metrics")).text
    assert 'quire_grammar_failures_total{engine="0",model_name="guide",reason="refused"} 1.0' in text
    assert 'quire_grammar_compile_seconds_count{engine="0",model_name="guide"} 2.0' in text
    assert "quire_grammar_cache_bytes" in text and "quire_grammar_mask_seconds_count" in text


# --- With the real engine ------------------------------------------------------------------------------------------


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def url() -> AsyncIterator[str]:
    """The address of a server with the model `guide`."""
    config, grammars = make_config({"max_num_seqs": 8, "max_model_len": 1024}), GrammarCache()
    thread = EngineThread(config, grammars=grammars)
    metrics = Metrics("guide", config.cache)
    engine = AsyncEngine(thread, config, metrics.observe)
    made = create_app(engine, config, load_text(config), metrics, grammars=grammars)
    engine.start()
    await until(lambda: engine.health().state is EngineState.READY)
    async with serving(made) as address:
        yield address
    await engine.close()


@pytest.mark.asyncio(loop_scope="module")
async def test_the_openai_client_gets_what_it_asked_for(url: str):
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        model = await client.models.retrieve("guide")
        assert (model.model_extra or {})["capabilities"]["structured_output"] is True
        chat = client.chat.completions
        format: Any = schema_format(SCHEMA)
        whole = await chat.create(model="guide", messages=MESSAGES, response_format=format, seed=3, n=2)
        values = [json.loads(choice.message.content or "") for choice in whole.choices]
        assert all(isinstance(value["b"], int) and value["a"] in ("x", "y") for value in values)
        assert {choice.finish_reason for choice in whole.choices} == {"stop"}
        pieces = [""] * 2
        async for chunk in await chat.create(
            model="guide", messages=MESSAGES, response_format=format, seed=3, n=2, stream=True
        ):
            for choice in chunk.choices:
                pieces[choice.index] += choice.delta.content or ""
        assert [json.loads(piece) for piece in pieces] == values
        extra = {"structured_outputs": {"choice": ["yes", "no"]}}
        short = await client.completions.create(model="guide", prompt="Is it so?", extra_body=extra)
        assert short.choices[0].text in ("yes", "no") and short.choices[0].finish_reason == "stop"
        with pytest.raises(openai.BadRequestError) as caught:
            await chat.create(model="guide", messages=MESSAGES, extra_body={"regex": "(?=a)"})
        assert caught.value.param == "regex"


@pytest.mark.asyncio(loop_scope="module")
async def test_a_limit_reached_while_streaming_is_an_error_event(url: str):
    body = {"messages": MESSAGES, "grammar": 'start: a\na: a a | "x"', "max_tokens": 400, "stream": True}
    body["logit_bias"] = {"4": -100}
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        with pytest.raises(openai.APIError) as caught:
            async for _ in await client.chat.completions.create(
                model="guide", messages=MESSAGES, stream=True, extra_body=body
            ):
                pass
    assert "cannot go on because of grammar: it has too many alternatives" in str(caught.value)
    assert caught.value.param == "grammar"


@pytest.mark.asyncio(loop_scope="module")
async def test_a_websocket_has_grammars_too(url: str):
    request = {"messages": MESSAGES, "response_format": schema_format(SCHEMA), "seed": 3}
    address = f"{url}/ws".replace("http", "ws")
    async with asyncio.timeout(60), websockets.connect(address, subprotocols=["quire.v1"]) as ws:
        await ws.send(json.dumps({"t": "hello", "protocol": "quire.v1"}))
        await ws.send(json.dumps({"t": "start", "id": "a", "request": request}))
        text = ""
        async for frame in ws:
            fields = json.loads(frame)
            text += fields.get("x", "") if fields["t"] == "delta" else ""
            if fields["t"] in ("done", "error"):
                break
    assert fields["t"] == "done" and set(json.loads(text)) >= {"a", "b"}
