"""A server of somebody else's, with an API like OpenAI's: what it says is written before."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

EVENTS, JSON = "text/event-stream; charset=utf-8", "application/json"


class Said(NamedTuple):
    """One response; `headers` are further ones. A `cut` one promises more bytes than it has."""

    body: str = ""
    status: int = 200
    content_type: str = EVENTS
    headers: tuple[tuple[str, str], ...] = ()
    is_cut: bool = False


class ForeignServer:
    """Says the same to each request for models and for answers; keeps the bodies that it was sent.

    `num_listed` counts the requests for models.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.listing = Said("", 404, "text/html")
        self.answer = Said()
        self.num_listed = 0
        self.bodies: list[dict[str, Any]] = []

    def list(self, *models: object) -> None:
        """List models as OpenAI does."""
        self.listing = Said(json.dumps({"object": "list", "data": models}), 200, JSON)

    def stream(self, *events: object, done: bool = True) -> None:
        """Answer with events: texts as they are, others as chunks in JSON."""
        lines = [each if isinstance(each, str) else f"data: {json.dumps(each)}\n\n" for each in events]
        self.answer = Said("".join([*lines, "data: [DONE]\n\n"] if done else lines))


@contextmanager
def foreign_server() -> Iterator[ForeignServer]:
    """Serve on a free port for the time of a block."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            server.num_listed += 1
            self._say(server.listing)

        def do_POST(self) -> None:
            server.bodies.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            self._say(server.answer)

        def log_message(self, format: str, *args: object) -> None:
            pass

        def _say(self, said: Said) -> None:
            body = said.body.encode()
            self.send_response(said.status)
            for name, value in (("content-type", said.content_type), *said.headers):
                self.send_header(name, value)
            if said.is_cut:
                self.send_header("content-length", str(len(body) + 1))
            self.end_headers()
            self.wfile.write(body)

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listener:
        server = ForeignServer(f"http://127.0.0.1:{listener.server_port}")
        thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            listener.shutdown()
            thread.join()
