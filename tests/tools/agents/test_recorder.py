"""The recorder writes the shape of each request and what became of it, and changes nothing."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route, WebSocketRoute
from starlette.testclient import TestClient
from starlette.websockets import WebSocket

from tools.agents.recorder import Recorder


async def echo(request: Request) -> JSONResponse:
    body = await request.json()
    return JSONResponse(body, 400 if "bad" in body else 200, {"x-quire-ignored": "store"})


async def talk(socket: WebSocket) -> None:
    await socket.accept()
    await socket.send_text(await socket.receive_text())
    await socket.close(1013)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "requests.jsonl"


@pytest.fixture
def app(file: Path) -> Recorder:
    return Recorder(Starlette(routes=[Route("/echo", echo, methods=["POST"]), WebSocketRoute("/talk", talk)]), file)


def records(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text().splitlines()]


async def post(app: Recorder, body: dict) -> httpx.Response:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
        return await client.post("/echo?beta=true", json=body)


async def test_a_request_is_a_line_with_its_shape_and_status(app, file):
    body = {"role": "user", "content": "secret"}
    assert (await post(app, body)).json() == body
    (record,) = records(file)
    assert record["body"] == {"role": "user", "content": "text"}
    given = {"method": "POST", "path": "/echo", "query": "beta=true", "status": 200, "ignored": ["store"]}
    assert given.items() <= record.items()
    assert "content-type" in record["headers"] and "error" not in record


async def test_the_answer_of_a_refusal_is_kept(app, file):
    await post(app, {"bad": "secret"})
    (record,) = records(file)
    assert (record["status"], record["error"]) == (400, '{"bad":"secret"}')


def test_each_frame_of_a_websocket_is_a_line_and_so_is_its_close(app, file):
    with TestClient(app).websocket_connect("/talk") as socket:
        socket.send_text('{"type": "response.create", "input": []}')
        socket.receive_text()
    frame, close = records(file)
    assert (frame["method"], frame["body"]) == ("FRAME", {"type": "response.create", "input": []})
    assert (close["method"], close["status"]) == ("CLOSE", 1013)


async def test_a_body_that_is_no_json_is_told_as_such(app, file):
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
        with pytest.raises(json.JSONDecodeError):
            await client.post("/echo", content=b"{")
    assert records(file)[0]["body"] == "no JSON"
