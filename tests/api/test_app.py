"""The routes of the application, the keys that they need, and what importing the application loads."""

import dataclasses
import re
import subprocess
import sys

import pytest
from starlette.routing import WebSocketRoute

from app import __version__
from app.api.routes.engine_events import EVENTS_PATH
from app.contract.sampling_defaults import DefaultSource, SamplingDefaults
from tests.api.serving import client_of, make_app
from tests.fakes import MODEL_INFO, FakeEngine

OPEN = {"/", "/static/{name:path}", "/preview", "/livez", "/readyz", "/health"}


def test_importing_the_application_loads_no_model_library():
    heavy = ["torch", "transformers", "triton", "sse_starlette"]
    program = f"import sys, app.api.app; print([name for name in {heavy!r} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


async def test_the_application_has_exactly_these_routes():
    app = await make_app()
    assert {route.path for route in app.routes} == OPEN | {
        "/metrics", "/v1/models", "/v1/models/{model:path}", "/v1/chat/completions",
        "/v1/chat/completions/input_tokens", "/v1/completions", "/v1/responses", "/v1/responses/input_tokens",
        "/v1/responses/{id}", "/v1/responses/{id}/cancel", "/v1/responses/{id}/input_items",
        "/v1/embeddings", "/tokenize", "/detokenize",
        "/apply-template", "/version", "/openapi.json", "/ws", "/v1/streams/{id}", "/live", "/v1/engine/events",
        "/v1/messages", "/v1/messages/count_tokens",
    }  # fmt: skip


async def test_every_route_but_the_open_ones_needs_the_key():
    app = await make_app(api_key=("right",))
    async with client_of(app) as client:
        for route in app.routes:
            if isinstance(route, WebSocketRoute):
                continue
            path = route.path.replace("{name:path}", "app.js").replace("{model:path}", "guide")
            path = path.replace(EVENTS_PATH, f"{EVENTS_PATH}?interval=0")  # its stream has no end
            for method in route.methods:
                answer = await client.request(method, path)
                assert (answer.status_code == 401) == (route.path not in OPEN), (method, path)
                if answer.status_code == 401:
                    assert answer.headers["www-authenticate"] == "Bearer"
                with_key = await client.request(method, path, headers={"authorization": "Bearer right"})
                assert with_key.status_code != 401


async def test_a_key_in_the_query_string_is_not_accepted():
    async with client_of(await make_app(api_key=("right",))) as client:
        assert (await client.get("/v1/models?api_key=right&key=right")).status_code == 401


@pytest.mark.parametrize("path", ["//v1/models", "/v1/../metrics", "/v1/models;x", "/v1%2fmodels", "/METRICS", "/nope"])
async def test_other_spellings_of_a_path_need_the_key(path):
    async with client_of(await make_app(api_key=("right",))) as client:
        assert (await client.get(path)).status_code == 401


async def test_a_served_name_with_a_slash_can_be_looked_up():
    async with client_of(await make_app(served_model_name="owner/name")) as client:
        answer = await client.get("/v1/models/owner/name")
        assert (answer.status_code, answer.json()["id"]) == (200, "owner/name")


async def test_the_model_object_has_the_context_length():
    async with client_of(await make_app()) as client:
        (model,) = (await client.get("/v1/models")).json()["data"]
    assert model == {
        "id": "guide",
        "object": "model",
        "type": "model",
        "display_name": "guide",
        "lifecycle": "active",
        "created_at": "1970-01-01T00:00:00Z",
        "max_input_tokens": MODEL_INFO.max_model_len - 1,
        "max_tokens": MODEL_INFO.max_model_len - 1,
        "created": 0,
        "owned_by": "quire",
        "root": "guide",
        "parent": None,
        "max_model_len": 2048,
        "kv_capacity_tokens": 65536,
        "format": "safetensors",
        "quantization": None,
        "default_sampling_params": {
            "temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0,
        },
        "default_sampling_sources": {},
        "capabilities": {
            "chat": True, "tools": True, "reasoning": False, "structured_output": False, "embeddings": True,
        },
    }  # fmt: skip


async def test_the_model_object_has_the_defaults_of_answers_without_thinking():
    engine = FakeEngine()
    other = SamplingDefaults(temperature=0.7, sources={"temperature": DefaultSource.PUBLISHER})
    info = dataclasses.replace(MODEL_INFO, defaults=SamplingDefaults(temperature=0.6, without_thinking=other))
    engine.model_info = lambda: info  # type: ignore[method-assign]
    async with client_of(await make_app(engine)) as client:
        (model,) = (await client.get("/v1/models")).json()["data"]
    assert model["default_sampling_params"]["temperature"] == 0.6
    found = model["default_sampling_without_thinking"]
    assert found["params"] == model["default_sampling_params"] | {"temperature": 0.7}
    assert found["sources"] == {"temperature": "recommended by its publisher"}


async def test_the_version_is_that_of_the_package():
    async with client_of(await make_app()) as client:
        assert (await client.get("/version")).json() == {"version": __version__}


async def test_the_model_object_has_the_format_and_the_quantization_of_the_engine():
    engine = FakeEngine()
    info = dataclasses.replace(MODEL_INFO, format="gguf", quantization="Q4_1, Q8_0")
    engine.model_info = lambda: info  # type: ignore[method-assign]
    async with client_of(await make_app(engine)) as client:
        (model,) = (await client.get("/v1/models")).json()["data"]
    assert (model["format"], model["quantization"]) == ("gguf", "Q4_1, Q8_0")


async def test_the_model_object_says_how_many_experts_compute_a_token():
    engine = FakeEngine()
    infos = iter([dataclasses.replace(MODEL_INFO, experts=(128, 8)), MODEL_INFO])
    info = next(infos)
    engine.model_info = lambda: info  # type: ignore[method-assign]
    async with client_of(await make_app(engine)) as client:
        (model,) = (await client.get("/v1/models")).json()["data"]
        assert model["quire"] == {"experts": {"total": 128, "per_token": 8}}
        info = next(infos)
        assert "quire" not in (await client.get("/v1/models")).json()["data"][0]


@pytest.mark.parametrize(
    ("method", "path", "body", "target"),
    [
        ("POST", "/v1/chat/completions/", {"messages": [{"role": "user", "content": "Hi"}]}, "/v1/chat/completions"),
        ("POST", "/v1/completions/?a=b", {"prompt": "Hi"}, "/v1/completions?a=b"),
        ("GET", "/v1/models/", None, "/v1/models"),
        ("POST", "/tokenize/", {"prompt": "Hi"}, "/tokenize"),
        ("GET", "/version/", None, "/version"),
        ("GET", "/v1/models/guide/", None, "/v1/models/guide"),
    ],
)
async def test_a_trailing_slash_is_redirected_with_method_and_body(method, path, body, target):
    async with client_of(await make_app()) as client:
        answer = await client.request(method, path, json=body)
        assert (answer.status_code, answer.headers["location"]) == (307, target)
        client.follow_redirects = True
        assert (await client.request(method, path, json=body)).status_code == 200


async def test_a_redirect_stays_on_this_server():
    async with client_of(await make_app()) as client:
        answer = await client.get("/v1/models/%0d%0aset-cookie:%20a%3f%23é/")
        assert (answer.status_code, answer.headers["location"]) == (
            307, "/v1/models/%0D%0Aset-cookie%3A%20a%3F%23%C3%A9",
        )  # fmt: skip
        assert (await client.get(answer.headers["location"])).status_code == 404


async def test_a_redirected_path_needs_the_key():
    async with client_of(await make_app(api_key=["secret"])) as client:
        assert (await client.get("/v1/models/")).status_code == 401


async def test_the_metrics_have_the_tasks_of_the_loop_and_the_commits_of_a_journal():
    app = await make_app()
    async with client_of(app) as client:
        page = (await client.get("/metrics")).text
    assert re.search(r"^quire_event_loop_tasks{.*} [1-9]", page, re.M)
    assert re.search(r"^quire_journal_commit_seconds_count{.*} 0.0$", page, re.M)
