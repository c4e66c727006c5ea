"""`GET /v1/models` and `/v1/models/{id}`: the served model."""

from __future__ import annotations

import orjson
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from app.api.http.context import ApiContext, context_of
from app.api.routes.capabilities import capabilities_of


async def list_models(request: Request) -> Response:
    """Answer with a list of all models, which is one."""
    model = _model(context_of(request))
    return Response(orjson.dumps({"object": "list", "data": [model]}), media_type="application/json")


async def get_model(request: Request) -> Response:
    """Answer with the model of the path's name."""
    if request.path_params["model"].endswith("/") or not request.path_params["model"]:
        raise HTTPException(404)  # a trailing slash
    context = context_of(request)
    model = _model(context)
    context.check_model(request.path_params["model"])
    return Response(orjson.dumps(model), media_type="application/json")


def _model(context: ApiContext) -> dict[str, object]:
    """Return the model as OpenAI's clients expect it; `max_model_len` is vLLM's name.

    Raises:
        ModelLoading, EngineFailed: the engine has no model.
    """
    model_info = context.engine.model_info()
    return {
        "id": context.model_name,
        "object": "model",
        "created": model_info.created,
        "owned_by": "quire",
        "root": context.model_name,
        "parent": None,
        "max_model_len": model_info.max_model_len,
        "kv_capacity_tokens": model_info.kv_capacity_tokens,
        "format": model_info.format,
        "quantization": model_info.quantization,
        "default_sampling_params": model_info.defaults.values(),
        "default_sampling_sources": dict(model_info.defaults.sources),
        "capabilities": capabilities_of(context.text, model_info, context.grammars).fields(),
    }
