"""`GET /version`: the version of this server."""

from __future__ import annotations

import orjson
from starlette.requests import Request
from starlette.responses import Response

from app import __version__


async def version(request: Request) -> Response:
    """Answer with the version, as vLLM does."""
    return Response(orjson.dumps({"version": __version__}), media_type="application/json")
