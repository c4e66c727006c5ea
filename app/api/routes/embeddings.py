"""`POST /v1/embeddings`: texts to vectors, the pooled hidden states of the served model."""

from __future__ import annotations

import base64
import sys
from array import array
from collections.abc import Sequence

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.api.body.parse_embeddings import EmbeddingsRequest, parse_embeddings
from app.api.body.parse_request import parse_post
from app.api.http.access_log import access_record
from app.api.http.connection import run_until_disconnect
from app.api.http.context import ApiContext, context_of
from app.api.http.error_response import error_response
from app.api.wire.response_head import ignored_header
from app.contract.errors import ErrorInfo
from app.streaming.vector_sink import embed


async def embeddings(request: Request) -> EmbeddingsResponse:
    """Answer with the vectors of the inputs."""
    return EmbeddingsResponse(context_of(request), await parse_post(request, parse_embeddings))


class EmbeddingsResponse:
    """Submits the requests together, waits for their vectors, and sends one JSON body."""

    def __init__(self, context: ApiContext, parsed: EmbeddingsRequest) -> None:
        self._context = context
        self._parsed = parsed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the response.

        Raises:
            ClientDisconnect: the client disconnected; the requests are aborted.
        """
        context, requests = self._context, self._parsed.requests
        context.streams.check_pending(requests[0].account)
        found = await run_until_disconnect(receive, embed(context.engine, requests))
        if isinstance(found, ErrorInfo):
            access_record(scope).reason = found.code
            await error_response(found, scope)(scope, receive, send)
            return
        num_tokens = sum(len(request.prompt_token_ids) for request in requests)
        access_record(scope).figures = {"n": len(requests), "prompt_tokens": num_tokens, "completion_tokens": 0}
        make = context.threads.run(
            _body, found, self._parsed.is_base64, context.model_name, num_tokens, account=requests[0].account
        )
        body = await run_until_disconnect(receive, make)
        headers = ignored_header(self._parsed.ignored)
        with context.streams.pending_of(requests[0].account).counted(len(body)):  # up to some megabytes
            await Response(body, headers=headers, media_type="application/json")(scope, receive, send)


def _body(vectors: Sequence[bytes], is_base64: bool, model: str, num_tokens: int) -> bytes:
    """Return the JSON body. Any thread: a vector is dumped at a time, so that other threads run in between."""
    data = b",".join(
        orjson.dumps({"object": "embedding", "index": index, "embedding": _encoded(vector, is_base64)})
        for index, vector in enumerate(vectors)
    )
    usage = {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
    head = orjson.dumps({"object": "list", "model": model, "usage": usage})
    return head[:-1] + b',"data":[' + data + b"]}"


def _encoded(vector: bytes, is_base64: bool) -> str | list[float]:
    """Return a vector as numbers, or as the base64 of little-endian float32."""
    numbers = array("f", vector)
    if not is_base64:
        return numbers.tolist()
    if sys.byteorder == "big":
        numbers.byteswap()
    return base64.b64encode(numbers.tobytes()).decode()
