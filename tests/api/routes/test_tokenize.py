"""Routes that tokenize without generating: the shapes of vLLM and llama.cpp, bounds, and the same ids as prompts."""

import shutil
import tracemalloc

import orjson
import pytest

from app.api.body.parse_chat import parse_chat
from app.api.body.parse_completion import parse_completion
from app.api.routes.tokenize import _json_list
from app.checkpoint.checkpoint_folder import EMBEDDED
from app.checkpoint.names import resolve
from app.contract.engine_status import EngineState
from app.text.entry.frontend import TextFrontend
from tests.api.body.test_rejections import check_error
from tests.api.serving import client_of, make_app, parse, raw
from tests.fakes import MODEL_INFO, FakeEngine

MESSAGES = [{"role": "user", "content": "What is Quire?"}]
COUNT, TEMPLATE = "/v1/chat/completions/input_tokens", "/apply-template"
LIMIT = MODEL_INFO.max_model_len


@pytest.fixture
async def app():
    return await make_app(FakeEngine())


@pytest.fixture
async def client(app):
    async with client_of(app) as client:
        yield client


async def answer_to(client, path, **body):
    answer = await client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/json"
    return answer.json()


@pytest.fixture
def tokenizer(app):
    return app.state.context.text.tokenizer


async def test_a_prompt_is_answered_in_the_shape_of_vllm(client, tokenizer):
    token_ids = tokenizer.encode("What is Quire?")
    answer = await answer_to(client, "/tokenize", prompt="What is Quire?", model="guide")
    assert answer == {"count": len(token_ids), "max_model_len": LIMIT, "tokens": token_ids, "token_strs": None}
    answer = await answer_to(client, "/tokenize", prompt=" a猫", return_token_strs=True)
    assert answer["token_strs"] == [tokenizer.token_string(token_id) for token_id in answer["tokens"]]
    assert answer["token_strs"][0] == "Ġa"


@pytest.mark.parametrize("options", [{}, {"add_generation_prompt": False}, {"reasoning_effort": "none"}])
async def test_messages_have_the_ids_of_a_chat_on_all_routes(app, client, options):
    body = {"messages": MESSAGES, **options}
    request = (await parse(raw(body), app.state.context, parse_chat)).request
    expected = list(request.prompt_token_ids)
    answer = await answer_to(client, "/tokenize", **body)
    assert (answer["tokens"], answer["count"], answer["max_model_len"]) == (expected, len(expected), LIMIT)
    assert await answer_to(client, COUNT, **body) == {"input_tokens": len(expected)}
    text = (await answer_to(client, TEMPLATE, **body))["prompt"]
    assert app.state.context.text.tokenizer.encode(text, add_special_tokens=False) == expected


async def test_a_continued_message_is_counted_as_a_chat_is(app, client):
    body = {"messages": [*MESSAGES, {"role": "assistant", "content": "It"}], "continue_final_message": True}
    request = (await parse(raw(body), app.state.context, parse_chat)).request
    assert await answer_to(client, COUNT, **body) == {"input_tokens": len(request.prompt_token_ids)}
    assert (await answer_to(client, TEMPLATE, **body))["prompt"].endswith("It")


async def test_content_is_answered_in_the_shape_of_llama_cpp(client, tokenizer):
    token_ids = tokenizer.encode("a猫", add_special_tokens=False)
    assert await answer_to(client, "/tokenize", content="a猫") == {"tokens": token_ids}
    answer = await answer_to(client, "/tokenize", content="a猫", with_pieces=True)
    assert [piece["id"] for piece in answer["tokens"]] == token_ids
    pieces = [piece["piece"] for piece in answer["tokens"]]
    assert pieces[0] == "a" and all(isinstance(piece, (str, list)) for piece in pieces)
    assert b"".join(bytes(p) if isinstance(p, list) else p.encode() for p in pieces).decode() == "a猫"


async def test_long_lists_of_tokens_are_whole(client, tokenizer, monkeypatch):
    monkeypatch.setattr("app.api.routes.tokenize.ITEMS_AT_ONCE", 4)
    text = "one two three four five six seven eight nine"
    token_ids = tokenizer.encode(text, add_special_tokens=False)
    assert len(token_ids) > 2 * 4
    answer = await answer_to(client, "/tokenize", content=text, with_pieces=True)
    assert answer["tokens"] == [{"id": each, "piece": tokenizer.decode([each])} for each in token_ids]
    answer = await answer_to(client, "/tokenize", prompt=text, add_special_tokens=False, return_token_strs=True)
    assert answer["token_strs"] == [tokenizer.token_string(each) for each in token_ids]
    assert await answer_to(client, "/tokenize", content="", with_pieces=True) == {"tokens": []}


def test_a_long_list_is_written_without_an_object_for_each_item():
    tracemalloc.start()
    try:
        written = orjson.dumps(_json_list({"id": number, "piece": str(number)} for number in range(50_000)))
        assert tracemalloc.get_traced_memory()[1] < 4 * len(written)
    finally:
        tracemalloc.stop()
    assert orjson.loads(written)[-1] == {"id": 49_999, "piece": "49999"}


async def test_special_tokens_in_content_are_tokens_unless_they_are_not_parsed(client, tokenizer):
    spelling, special_id = next(iter(tokenizer.special_tokens.items()))
    assert (await answer_to(client, "/tokenize", content=spelling))["tokens"] == [special_id]
    as_text = (await answer_to(client, "/tokenize", content=spelling, parse_special=False))["tokens"]
    assert special_id not in as_text
    assert (await answer_to(client, "/detokenize", tokens=as_text))["content"] == spelling


async def test_token_ids_become_text_under_both_names(client, tokenizer):
    text = f"a 猫{next(iter(tokenizer.special_tokens))} 🙂"
    token_ids = tokenizer.encode(text)
    assert await answer_to(client, "/detokenize", tokens=token_ids) == {"prompt": text, "content": text}
    assert await answer_to(client, "/detokenize", tokens=[]) == {"prompt": "", "content": ""}


async def test_a_full_chat_body_is_accepted_and_unknown_fields_are_named(client):
    body = {"messages": MESSAGES, "model": "guide", "temperature": 0.5, "stream": True, "user": "me", "foo": 1}
    for path in (COUNT, TEMPLATE, "/tokenize"):
        answer = await client.post(path, json=body)
        assert (answer.status_code, answer.headers["x-quire-ignored"]) == (200, "foo")


@pytest.mark.parametrize("path", [COUNT, TEMPLATE, "/tokenize"])
@pytest.mark.parametrize(("name", "value"), [("temperature", "hot"), ("stream", 5), ("priority", 101)])
async def test_wrong_values_of_a_chat_are_rejected_on_all_routes(client, path, name, value):
    check_error(await client.post(path, json={"messages": MESSAGES, name: value}), 400, "invalid_value", name)


async def test_the_tokens_of_a_chat_that_does_not_fit_are_counted(client):
    long = [{"role": "user", "content": "word " * 9000}]
    assert (await answer_to(client, COUNT, messages=long))["input_tokens"] >= 9000


async def test_messages_to_tokenize_have_the_tools_of_a_chat(client):
    tools = [{"type": "function", "function": {"name": "f"}}]
    chat = {"messages": MESSAGES, "tools": tools, "tool_choice": "auto", "continue_final_message": False}
    count = (await answer_to(client, COUNT, **chat))["input_tokens"]
    assert (await answer_to(client, "/tokenize", **chat))["count"] == count
    without = await answer_to(client, "/tokenize", **{**chat, "tool_choice": "none"})
    assert without["count"] == (await answer_to(client, COUNT, messages=MESSAGES))["input_tokens"] < count


async def test_strict_rejects_unknown_fields_beside_messages():
    async with client_of(await make_app(FakeEngine(), strict=True)) as client:
        body = {"messages": MESSAGES, "model": "guide", "return_token_strs": True, "add_special_tokens": False}
        assert len((await answer_to(client, "/tokenize", **body))["token_strs"]) > 0
        check_error(
            await client.post("/tokenize", json={**body, "with_pieces": True}), 400, "invalid_value", "with_pieces"
        )


BAD = [
    ("nothing", "/tokenize", {}, 400, "invalid_value", "prompt"),
    ("two texts", "/tokenize", {"prompt": "a", "content": "b"}, 400, "invalid_value", "content"),
    ("a number", "/tokenize", {"prompt": 5}, 400, "invalid_value", "prompt"),
    ("a wrong option", "/tokenize", {"content": "a", "with_pieces": 1}, 400, "invalid_value", "with_pieces"),
    ("tokens around messages", "/tokenize", {"messages": MESSAGES, "add_special_tokens": True}, 400,
     "unsupported_parameter", "add_special_tokens"),
    ("tools that are none", "/tokenize", {"messages": MESSAGES, "tools": 5}, 400, "invalid_value", "tools"),
    ("a template", "/tokenize", {"messages": MESSAGES, "chat_template": "x"}, 400, "unsupported_parameter",
     "chat_template"),
    ("no messages", "/tokenize", {"messages": []}, 400, "invalid_value", "messages"),
    ("an unknown role", COUNT, {"messages": [{"role": "x", "content": ""}]}, 400, "invalid_value", "messages[0].role"),
    ("a long text", "/tokenize", {"prompt": "x" * 2**20}, 400, "context_length_exceeded", "prompt"),
    ("long content", "/tokenize", {"content": "x" * 2**20}, 400, "context_length_exceeded", "content"),
    ("a long chat", TEMPLATE, {"messages": [{"role": "user", "content": "x" * 2**20}]}, 400, "context_length_exceeded",
     "messages"),
    ("no tokens", "/detokenize", {}, 400, "invalid_value", "tokens"),
    ("a negative id", "/detokenize", {"tokens": [-1]}, 400, "invalid_value", "tokens"),
    ("a large id", "/detokenize", {"tokens": [MODEL_INFO.vocab_size]}, 400, "invalid_value", "tokens"),
    ("many ids", "/detokenize", {"tokens": [5] * (LIMIT + 1)}, 400, "context_length_exceeded", "tokens"),
    ("text as ids", "/detokenize", {"tokens": "abc"}, 400, "invalid_value", "tokens"),
    *(("another model", path, {**body, "model": "x"}, 404, "model_not_found", "model") for path, body in (
        ("/tokenize", {"prompt": "a"}), ("/tokenize", {"messages": MESSAGES}), ("/tokenize", {"content": "a"}),
        ("/detokenize", {"tokens": [5]}), (TEMPLATE, {"messages": MESSAGES}), (COUNT, {"messages": MESSAGES}),
    )),
]  # fmt: skip


@pytest.mark.parametrize(
    ("path", "body", "status", "code", "param"), [case[1:] for case in BAD], ids=[c[0] for c in BAD]
)
async def test_a_bad_body_is_rejected_by_name(client, path, body, status, code, param):
    answer = await client.post(path, json=body)
    check_error(answer, status, code, param)
    assert "output" not in answer.text


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize", TEMPLATE, COUNT])
async def test_the_routes_check_what_all_routes_with_a_body_do(path):
    engine = FakeEngine()
    async with client_of(await make_app(engine, max_request_bytes=1024, strict=True)) as client:
        check_error(await client.post(path, content=b"{"), 415, "unsupported_media_type")
        json = {"content-type": "application/json"}
        check_error(await client.post(path, content=b"{", headers=json), 400, "json_invalid")
        check_error(await client.post(path, content=b" " * 1025, headers=json), 413, "request_too_large")
        body = {"messages": MESSAGES, "tokens": [5], "foo": 1} if path != "/tokenize" else {"prompt": "a", "foo": 1}
        assert (await client.post(path, json=body)).status_code == 400
        engine.port.state = EngineState.LOADING
        check_error(await client.post(path, json=body), 503, "model_loading")


async def test_a_model_without_a_template_has_no_chat_but_tokenizes(tmp_path):
    for name in ("tokenizer.json", "config.json"):
        shutil.copy(resolve(EMBEDDED) / name, tmp_path)
    async with client_of(await make_app(model=str(tmp_path))) as client:
        for path in (COUNT, TEMPLATE, "/tokenize"):
            check_error(await client.post(path, json={"messages": MESSAGES}), 400, "no_chat_template")
        assert (await answer_to(client, "/tokenize", prompt="Hi"))["count"]
        (model,) = (await client.get("/v1/models")).json()["data"]
        assert model["capabilities"]["chat"] is False


async def test_a_prompt_has_the_ids_of_a_completion(app, client, monkeypatch):
    monkeypatch.setattr(TextFrontend, "as_question", lambda *_, **__: None)  # `guide` would answer it
    request = (await parse(raw({"prompt": "Hi there"}), app.state.context, parse_completion)).request
    tokens = (await answer_to(client, "/tokenize", prompt="Hi there"))["tokens"]
    assert list(request.prompt_token_ids) == tokens
