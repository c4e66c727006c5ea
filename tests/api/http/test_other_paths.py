"""Paths that do not exist: the error says whose they are, and what to use."""

import re

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from app.api.http.other_paths import _OTHERS, API_PATHS, MAX_PATH_CHARS, advice
from app.api.routes.operations import OPERATIONS
from tests.api.serving import client_of, make_app, serving


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/v1/responses/resp_1/steps", "nothing at /v1/responses/resp_1/steps; /openapi.json"),
        ("/openai/v1/responses", "use /v1/responses; the base URL"),
        ("/v1/responses/compact", "shortens conversations, .*; use /v1/responses with truncation set to auto"),
        ("/v1/responses/compact/cancel", "/v1/responses/compact belongs to"),
        ("/v1/complete", "Anthropic's Text Completions API, which this server does not have; use /v1/completions"),
        ("/v1/v1/messages", "use /v1/messages; the base URL for Anthropic's clients ends without /v1"),
        ("/messages", "use /v1/messages; the base URL for Anthropic's clients"),
        ("/api/chat", "Ollama's API, .*; use /v1/chat/completions"),
        ("/api/generate", "Ollama's API, .*; use /v1/completions"),
        ("/api/tags", "Ollama's API, .*; use /v1/models"),
        ("/api/embed", "Ollama's API, .*; use /v1/embeddings"),
        ("/api/pull", "Ollama's API, .* `quire pull`"),
        ("/v1/rerank", "rank documents, .*; use /v1/embeddings"),
        ("/rerank", "rank documents"),
        ("/v1/audio/speech", "sound and pictures, .*; use another server"),
        ("/v1/audio/transcriptions", "sound and pictures"),
        ("/v1/images/generations", "sound and pictures"),
        ("/v1/batches", "stored files and jobs, .*; use another server"),
        ("/completion", "llama.cpp's own API, .*; use /v1/completions"),
        ("/generate_stream", "Text Generation Inference and SGLang"),
        ("/info", "Text Generation Inference and SGLang, .*; use /v1/models"),
        ("/api/version", "Ollama's API, .*; use /version.$"),
        ("/embed", "Text Embeddings Inference's API, .*; use /v1/embeddings"),
        ("/v2/embed", "Cohere's API, .*; use /v1/embeddings"),
        ("/v2/chat", "Cohere's API, .*; use /v1/chat/completions"),
        ("/classify", "vLLM's pooling APIs, .*; use /v1/embeddings"),
        ("/ping", "other servers' checks of health, .*; use /health"),
        ("/v1beta/models/gemini:generateContent", "Google's Gemini API"),
        # a wrong base URL
        ("/chat/completions", "nothing at /chat/completions; use /v1/chat/completions; the base URL .* one /v1"),
        ("/models", "use /v1/models; the base URL"),
        ("/embeddings/", "use /v1/embeddings"),
        ("/v1/v1/chat/completions", "nothing at /v1/v1/chat/completions; use /v1/chat/completions"),
        ("/v1/chat/completions/chat/completions", "use /v1/chat/completions"),
        ("/v1/v1/completions", "use /v1/completions"),
        ("//v1/models", "use /v1/models"),
        ("/V1/models", "use /v1/models"),
        ("/api/v1/chat/completions", "use /v1/chat/completions"),
        ("/openai/deployments/x/chat/completions", "use /v1/chat/completions"),
        ("/v1/engines/x/completions", "use /v1/completions"),
        ("/v1/tokenize", "nothing at /v1/tokenize; use /tokenize.$"),
        ("/api/v1/version", "use /version.$"),
        # anything else
        ("/v1/chat/completion", "completion; did you mean '/v1/chat/completions' or .*; /openapi.json lists"),
        ("/v1/modles", "nothing at /v1/modles; did you mean '/v1/models'"),
        ("/nope", "nothing at /nope; /openapi.json lists the routes.$"),
        ("/v1/realtimex", "nothing at /v1/realtimex; /openapi.json"),
        ("/v1", "nothing at /v1; /openapi.json"),
    ],
)
async def test_an_unknown_path_says_what_to_use(path, words):
    async with client_of(await make_app()) as client:
        answer = await client.post(f"http://127.0.0.1{path}", json={})
    assert answer.status_code == 404
    error = answer.json()["error"]
    assert (error["code"], error["type"]) == ("not_found", "not_found_error")
    assert re.search(words, error["message"]), error["message"]


@pytest.mark.parametrize(
    ("method", "path", "status", "allowed"),
    [
        ("GET", "/v1/responses/input_tokens", 405, "POST"),
        ("DELETE", "/v1/responses/input_tokens", 405, "POST"),
        ("GET", "/v1/responses/compact", 404, None),
        ("DELETE", "/v1/responses/compact", 404, None),
        ("GET", "/v1/responses/compacted", 404, None),
        ("PUT", "/v1/responses/compacted", 405, "DELETE, GET, HEAD"),
    ],
)
async def test_no_path_that_means_something_else_is_the_id_of_a_response(method, path, status, allowed):
    async with client_of(await make_app()) as client:
        answer = await client.request(method, path)
    assert (answer.status_code, answer.headers.get("allow")) == (status, allowed)
    assert ("Response with id" in answer.text) == (path.endswith("compacted") and status == 404)


@pytest.mark.parametrize("path", ["/ws", "/live"])
async def test_a_request_to_a_websocket_says_that_it_is_one(path):
    async with client_of(await make_app()) as client:
        answer = await client.get(path)
    assert answer.status_code == 404
    assert f"{path} is a WebSocket" in answer.json()["error"]["message"]


async def test_a_websocket_to_a_wrong_path_says_where_they_are():
    async with serving(await make_app()) as url:
        with pytest.raises(InvalidStatus) as refused:
            async with connect(f"{url}/v1/ws".replace("http", "ws", 1)):
                pass
    response = refused.value.response
    assert response.status_code == 404
    assert b"There is no WebSocket at /v1/ws; this server's are /ws and /live." in response.body


def test_a_long_path_is_quoted_in_part():
    assert len(advice(f"/{'x' * 8000}")) < MAX_PATH_CHARS + 100


def test_every_route_is_known_but_those_of_operators_and_of_one_thing():
    paths = {operation.path for operation in OPERATIONS}
    assert set(API_PATHS) - paths == {"/openapi.json", "/v1/engine/events"}
    unnamed = {path for path in paths - set(API_PATHS) if "{id}" not in path}
    assert unnamed == {"/livez", "/readyz", "/health", "/v1/models/{model:path}"}


def test_no_route_of_this_server_is_called_another_api():
    """A route that is built leaves the table."""
    paths = [operation.path for operation in OPERATIONS]
    assert not [path for path in paths for other in _OTHERS if path == other or path.startswith(f"{other}/")]


def test_what_to_use_exists():
    paths = {operation.path for operation in OPERATIONS} | {"/metrics", "/ws"}
    named = {word.strip(".,") for _, instead in _OTHERS.values() for word in instead.split() if word.startswith("/")}
    assert named <= paths
