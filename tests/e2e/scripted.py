"""A quire.v1 server without a model; the test decides every frame that it sends to the page."""

import asyncio
import base64
import hashlib
import json
import math
import re
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from mimetypes import guess_type
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

import app
from app.api.routes.preview import Preview
from tests.api.serving import HANG_S
from tests.quick_server import QuickServer

STATIC = Path(app.__file__).parent / "static"
WINDOW = 256
KEPT = {"cache-control": "public, max-age=31536000, immutable"}
"""Of the page's files, as Quire's server sends them: what was loaded before is there without the server."""
LIMITS = {"context_share": 0.25, "repetition_stop": True}
"""Of an answer, as the page sends them."""


def content_security_policy(page: str) -> str:
    """The content security policy for this text of index.html."""
    match = re.search(r'<script type="importmap">(.*?)</script>', page, re.S)
    assert match
    digest = base64.b64encode(hashlib.sha256(match[1].encode()).digest()).decode()
    return (
        f"default-src 'none'; script-src 'self' 'sha256-{digest}'; style-src 'self'; img-src 'self' data:; "
        "font-src 'self'; connect-src 'self'; frame-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types dompurify"
    )


@cache
def static_file(name: str) -> bytes | None:
    """The content of a file of the page, read once for all servers: a page asks for 170; None if there is none."""
    file = STATIC / name
    return file.read_bytes() if file.is_file() else None


def scored(token: bytes, probability: float) -> dict[str, Any]:
    """A token as OpenAI's log-probabilities have it."""
    return {"token": token.decode("utf-8", "replace"), "logprob": math.log(probability), "bytes": list(token)}


class Stream:
    """One stream of the scripted server; the test sends each of its frames."""

    def __init__(self, websocket: WebSocket, frame: dict[str, Any]) -> None:
        self.websocket = websocket
        self.id = frame["id"]
        self.frame = frame
        self.request = frame.get("request", {})
        self.cancelled = asyncio.Event()
        self.sent = frame.get("after", [0])[0]
        self.credits: list[int] = []  # the last token that each credit frame allows

    async def send(self, kind: str, **fields: Any) -> None:
        """Send a frame of this stream."""
        await self.websocket.send_json({"t": kind, "id": self.id, **fields})

    async def delta(self, text: str, tokens: int = 1) -> None:
        """Send `text` as the next `tokens` tokens."""
        await self.send("delta", i=0, n=self.sent + 1, k=tokens, x=text)
        self.sent += tokens

    async def choice(self, number: int, text: str, *, first: int = 1, ends: str = "") -> None:
        """Send `text` as one token of a choice, its `first` one or a later one, and its end if that has a reason."""
        await self.send("delta", i=number, n=first, k=1, x=text)
        if ends:
            await self.send("finish", i=number, n=first, finish_reason=ends)

    async def done_all(self, number: int) -> None:
        """End the stream of so many choices, each of which has ended."""
        usage = {"prompt_tokens": 9, "completion_tokens": number, "total_tokens": 9 + number}
        await self.send("done", usage=usage, timings={})

    async def token(self, text: str, probability: float, **others: float) -> None:
        """Send `text` as the next token, with its probability and those of others in its place."""
        entry = scored(text.encode(), probability)
        best = [scored(other.encode(), each) for other, each in others.items()]
        lp = [entry | {"top_logprobs": [entry, *best]}]
        await self.send("delta", i=0, n=self.sent + 1, k=1, x=text, lp=lp)
        self.sent += 1

    async def done(
        self, reason: str = "stop", timings: dict[str, float] | None = None, *, stop_reason: str | None = None
    ) -> None:
        """End the stream; without `timings` or `stop_reason` the frames have none."""
        usage = {"prompt_tokens": 9, "completion_tokens": self.sent, "total_tokens": 9 + self.sent}
        ended = {"finish_reason": reason} | ({} if stop_reason is None else {"stop_reason": stop_reason})
        await self.send("finish", i=0, n=self.sent, **ended)
        await self.send("done", usage=usage, timings=timings or {})

    async def error(self, code: str, status: int, message: str) -> None:
        """End the stream with an error."""
        await self.send("error", code=code, status=status, message=message, param=None, fatal=False)

    async def answer(self, text: str, size: int = 4) -> None:
        """Stream all of `text` in pieces of `size` characters, then end."""
        for start in range(0, len(text), size):
            await self.delta(text[start : start + size])
            await asyncio.sleep(0)
        await self.done()

    async def drain(self) -> None:
        """Send that the server is draining."""
        await self.websocket.send_json({"t": "draining", "deadline_ms": 30000})

    async def drop(self, code: int) -> None:
        """Close the connection."""
        await self.websocket.close(code)


class ScriptedServer:
    """Serves the page, at an address if one is given; the test sets health, model and key, and sends the frames."""

    def __init__(self, url: str = "") -> None:
        self.url = url
        self.health: dict[str, Any] = {"status": "ready", "progress": 1.0}
        self.model = "guide"
        self.details: dict[str, Any] = {}  # further fields of the model in /v1/models
        self.key: str | None = None
        self.keeps = False  # answers, for pages that come back
        self.accepts = True
        self.is_crowded = False  # takes no further reader of an answer
        self.is_silent = False  # answers no ping
        self.deleted: list[str] = []  # the streams that were cancelled without a connection
        self.hellos: list[dict[str, Any]] = []
        self.streams: asyncio.Queue[Stream] = asyncio.Queue()
        self.watchers: asyncio.Queue[WebSocket] = asyncio.Queue()  # of the live view
        self._left: asyncio.Queue[WebSocket] = asyncio.Queue()  # those that are gone
        self.live_hellos: list[dict[str, Any]] = []
        self.shows_engine = True
        self._sockets: list[WebSocket] = []
        self._ponged = asyncio.Event()
        self._server: QuickServer
        self._serving: asyncio.Task[None]

    async def ping(self) -> None:
        """Return when the page has answered a ping: all frames that it sent before have been read."""
        self._ponged.clear()
        await self._sockets[-1].send_json({"t": "ping", "ts": 0})
        await asyncio.wait_for(self._ponged.wait(), HANG_S)

    async def next_watcher(self) -> WebSocket:
        """Wait for the next live view that has said hello; the test sends its messages."""
        return await asyncio.wait_for(self.watchers.get(), HANG_S)

    async def next_left(self) -> WebSocket:
        """Wait for the next live view that closes its connection."""
        return await asyncio.wait_for(self._left.get(), HANG_S)

    async def next_stream(self) -> Stream:
        """Wait for the next stream that the page starts or resumes."""
        return await asyncio.wait_for(self.streams.get(), HANG_S)

    def app(self) -> Starlette:
        """The routes that the page uses."""
        return Starlette(
            routes=[
                Route("/", self._page),
                Route("/preview", Preview().show),
                Route("/readyz", self._readyz),
                Route("/v1/models", self._models),
                Route("/v1/streams/{id}", self._delete, methods=["DELETE"]),
                WebSocketRoute("/ws", self._ws),
                WebSocketRoute("/live", self._live),
                Route("/static/{name:path}", self._static),
            ]
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator["ScriptedServer"]:
        """Listen on a free port of the loopback for the time of the block."""
        await self.listen()
        try:
            yield self
        finally:
            await self._stop(force=False)

    async def listen(self) -> None:
        """Listen on the given port or a free one of the loopback, after `kill` on the same one."""
        port = int(self.url.rpartition(":")[2] or 0)
        listener = socket.create_server(("127.0.0.1", port))
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        config = uvicorn.Config(self.app(), log_config=None, lifespan="off", timeout_graceful_shutdown=1)
        self._server = QuickServer(config)
        self._serving = asyncio.create_task(self._server.serve([listener]))

    async def kill(self) -> None:
        """Cut every connection without a close frame, as the end of the process does, and listen no more.

        Also those that are accepted at this moment: they are registered too late for uvicorn to close them, and the
        page would be served on.
        """
        for listener in self._server.servers:
            listener.close()
        self._cut()
        await self._stop(force=True)
        self._cut()

    def _cut(self) -> None:
        for connection in list(self._server.server_state.connections):
            connection.transport.abort()  # type: ignore[union-attr]

    async def _stop(self, *, force: bool) -> None:
        self._server.force_exit = force
        self._server.should_exit = True
        await self._serving

    async def _page(self, _request: Request) -> Response:
        page = (STATIC / "index.html").read_text()
        return HTMLResponse(page, headers={"Content-Security-Policy": content_security_policy(page)})

    async def _static(self, request: Request) -> Response:
        name = request.path_params["name"]
        content = static_file(name)
        return Response(content, 404 if content is None else 200, KEPT, guess_type(name)[0])

    async def _readyz(self, _request: Request) -> Response:
        return JSONResponse(self.health, 200 if self.health["status"] == "ready" else 503)

    async def _models(self, request: Request) -> Response:
        if self.key is not None and request.headers.get("authorization") != f"Bearer {self.key}":
            error = {"message": "No valid key.", "type": "invalid_request_error", "code": "invalid_api_key"}
            return JSONResponse({"error": error}, 401)
        return JSONResponse({"object": "list", "data": [{"id": self.model, "object": "model", **self.details}]})

    async def _delete(self, request: Request) -> Response:
        self.deleted.append(request.path_params["id"])
        return Response(status_code=204)

    async def _live(self, websocket: WebSocket) -> None:
        assert websocket.scope["subprotocols"] == ["quire.live.v1"]
        if not self.shows_engine:
            return await websocket.close()
        await websocket.accept("quire.live.v1")
        try:
            self.live_hellos.append(json.loads(await websocket.receive_text()))
            await self.watchers.put(websocket)
            await websocket.receive_text()  # the page says no more: until it has left
        except WebSocketDisconnect:
            await self._left.put(websocket)

    async def _ws(self, websocket: WebSocket) -> None:
        assert websocket.scope["subprotocols"] == ["quire.v1"]
        await websocket.accept("quire.v1")
        self._sockets.append(websocket)
        streams: dict[str, Stream] = {}
        try:
            while True:
                frame = json.loads(await websocket.receive_text())
                match frame["t"]:
                    case "hello":
                        self.hellos.append(frame)
                        if frame.get("key") != self.key:
                            return await websocket.close(4401)
                        await websocket.send_json(
                            {
                                "t": "welcome",
                                "server": "scripted",
                                "limits": {"window": WINDOW, "ttl_s": 3600 if self.keeps else 0},
                                "heartbeat_ms": 15000,
                            }
                        )
                    case "start" | "resume":
                        stream = streams[frame["id"]] = Stream(websocket, frame)
                        if self.is_crowded and frame["t"] == "resume":
                            await stream.error("rate_limit_exceeded", 429, "8 readers read this stream.")
                            continue
                        if self.accepts:
                            ttl_s = 300 if self.keeps else 0
                            await stream.send("accepted", stream="s" + stream.id, model=self.model, ttl_s=ttl_s)
                        await self.streams.put(stream)
                    case "credit":
                        streams[frame["id"]].credits += frame["upto"]
                    case "cancel":
                        streams[frame["id"]].cancelled.set()
                    case "ping" if self.is_silent:
                        pass
                    case "ping":
                        await websocket.send_json({"t": "pong", "ts": frame["ts"]})
                    case "pong":
                        self._ponged.set()
                    case unknown:
                        raise AssertionError(f"the page sent an unknown frame {unknown!r}")
        except WebSocketDisconnect:
            return None
