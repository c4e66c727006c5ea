"""The client: one connection for each request, opened when it is sent and closed when it is answered.

Opening it counts as part of the answer: a server that is slow to take connections is slow. Nothing is asked of a proxy.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import time
from collections.abc import Mapping
from typing import Any, Protocol

import httptools
import orjson

from app.contract.errors import CannotStart, ConfigurationError
from app.loadgen.answer import Answer
from app.loadgen.answer_reader import AnswerReader
from app.loadgen.load import Request
from app.loadgen.refusal import read_refusal
from app.loadgen.target import Target

READ_BYTES = 65536
MODELS_TIMEOUT_S = 30.0
MAX_BODY_BYTES = 4 << 20


class Reader(Protocol):
    """What takes an answer's bytes."""

    is_over: bool

    def connected(self, now: float) -> None:
        """The connection was open at `now`."""

    def feed(self, piece: bytes, now: float) -> None:
        """Take the next bytes, which came at `now`; set `is_over` where nothing more is to be read."""


class Client:
    """Sends requests to one server; as many at once as wanted."""

    def __init__(self, target: Target, timeout_s: float) -> None:
        self._target = target
        self._timeout_s = timeout_s

    async def ask(self, request: Request, answer: Answer) -> None:
        """Send a request and read its answer into `answer`, also where it fails. Cancelling closes the connection."""
        reader = AnswerReader(answer, request.cancel_after)
        try:
            async with asyncio.timeout(self._timeout_s):
                await self.exchange(request.message, reader)
        except TimeoutError:
            answer.fail("timed out", f"no end of the answer after {self._timeout_s:g} s", time.perf_counter())
        except OSError as error:
            what = "cut" if answer.connected else "no connection"
            answer.fail(what, _reason(error), time.perf_counter())
        reader.end(time.perf_counter())

    async def model(self) -> str:
        """Return the first model that the server names.

        Raises:
            CannotStart: nobody answers there, or it has no time.
            ConfigurationError: the answer names no model.
        """
        url, body = self._target.url, Body()
        try:
            async with asyncio.timeout(MODELS_TIMEOUT_S):
                await self.exchange(self._target.get("/v1/models"), body)
        except TimeoutError:
            raise CannotStart(f"{url} does not answer within {MODELS_TIMEOUT_S:g} s") from None
        except OSError as error:
            raise CannotStart(f"cannot talk with {url}: {_reason(error)}") from None
        if body.status >= 500:
            raise CannotStart(f"{url}/v1/models: {': '.join(read_refusal(body.status, body.content))}")
        try:
            return str(orjson.loads(body.content)["data"][0]["id"])
        except (ValueError, LookupError, TypeError):
            says = ": ".join(read_refusal(body.status, body.content)) if body.status else "this is not HTTP"
            raise ConfigurationError(
                f"{url}/v1/models names no model ({says}); give --model, and --api-key where one is asked for"
            ) from None

    async def get(self, path: str) -> Body:
        """Return the answer to a GET. Raises OSError as `exchange`, and TimeoutError."""
        return await self._fetch(self._target.get(path))

    async def post(self, path: str, fields: Mapping[str, Any]) -> Body:
        """Return the answer to a POST of JSON, which is no stream. Raises as `get`."""
        return await self._fetch(self._target.post(path, orjson.dumps(fields)))

    async def exchange(self, message: bytes, into: Reader) -> None:
        """Send a message on a connection of its own, and let `into` read until it is over or the peer hangs up."""
        reader, writer = await asyncio.open_connection(**self._target.connecting)
        try:
            into.connected(time.perf_counter())
            writer.write(message)
            while not into.is_over and (piece := await reader.read(READ_BYTES)):
                into.feed(piece, time.perf_counter())
        finally:
            writer.transport.abort()  # all is read, or nobody wants it: a peer that takes nothing must not keep it open

    async def _fetch(self, message: bytes) -> Body:
        body = Body()
        async with asyncio.timeout(self._timeout_s):
            await self.exchange(message, body)
        return body


class Body:
    """Takes the body of an answer that is no stream.

    Attributes:
        is_over: nothing more is to be read.
        status: 0 is no HTTP.
        content: at most MAX_BODY_BYTES, and what came with the last of them.
    """

    def __init__(self) -> None:
        self.is_over = False
        self.status = 0
        self.content = b""
        self._http = httptools.HttpResponseParser(self)

    def connected(self, now: float) -> None:
        """Nobody asks when."""

    def feed(self, piece: bytes, now: float) -> None:
        """See Reader."""
        try:
            self._http.feed_data(piece)
        except httptools.HttpParserError:
            self.status, self.is_over = 0, True

    def on_headers_complete(self) -> None:
        """Note the status; called by the parser."""
        self.status = self._http.get_status_code()

    def on_body(self, body: bytes) -> None:
        """Keep the next bytes; called by the parser."""
        self.content += body
        self.is_over |= len(self.content) > MAX_BODY_BYTES

    def on_message_complete(self) -> None:
        """Note the end; called by the parser."""
        self.is_over = True


def _reason(error: OSError) -> str:
    """Return why there is no connection; asyncio and TLS each have their own words in front of the system's."""
    if error.errno is None or isinstance(error, ssl.SSLError):
        return str(error)
    return os.strerror(error.errno)
