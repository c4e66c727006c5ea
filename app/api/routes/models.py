"""`GET /v1/models` and `/v1/models/{id}`: the served model."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
from msgspec import UNSET
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from app.api.http.context import ApiContext, context_of
from app.api.wire.answers import DefaultsAnswer, ExpertsAnswer, ModelAnswer, ModelsAnswer, QuireAnswer
from app.contract.engine_status import ModelInfo


async def list_models(request: Request) -> Response:
    """Answer with a list of all models, which is one."""
    model = _model(context_of(request))
    models = ModelsAnswer("list", [model], has_more=False, first_id=model.id, last_id=model.id)
    return Response(msgspec.json.encode(models), media_type="application/json")


async def get_model(request: Request) -> Response:
    """Answer with the model of the path's name."""
    if request.path_params["model"].endswith("/") or not request.path_params["model"]:
        raise HTTPException(404)  # a trailing slash
    context = context_of(request)
    model = _model(context)
    context.check_model(request.path_params["model"])
    return Response(msgspec.json.encode(model), media_type="application/json")


def _model(context: ApiContext) -> ModelAnswer:
    """Return the model as OpenAI's and Anthropic's clients expect it; `max_model_len` is vLLM's name.

    Raises:
        ModelLoading, EngineFailed: the engine has no model.
    """
    model_info = context.engine.model_info()
    other = model_info.defaults.without_thinking
    without_thinking = UNSET if other is None else DefaultsAnswer(other.values(), dict(other.sources))
    return ModelAnswer(
        id=context.model_name,
        object="model",
        type="model",
        display_name=context.model_name,
        created=model_info.created,
        created_at=f"{datetime.fromtimestamp(model_info.created, UTC):%Y-%m-%dT%H:%M:%SZ}",
        owned_by="quire",
        root=context.model_name,
        parent=None,
        max_model_len=model_info.max_model_len,
        max_input_tokens=model_info.max_model_len - 1,
        max_tokens=model_info.max_model_len - 1,
        lifecycle="active",
        kv_capacity_tokens=model_info.kv_capacity_tokens,
        format=model_info.format,
        quantization=model_info.quantization,
        default_sampling_params=model_info.defaults.values(),
        default_sampling_sources=dict(model_info.defaults.sources),
        capabilities=_capabilities(context, model_info),
        default_sampling_without_thinking=without_thinking,
        quire=QuireAnswer(ExpertsAnswer(*model_info.experts)) if model_info.experts is not None else UNSET,
    )


def _capabilities(context: ApiContext, model_info: ModelInfo) -> dict[str, bool]:
    """Return the kinds of requests that a model takes: `chat` needs a template, completions always work."""
    answers = context.text.answers
    return {
        "chat": context.text.chat_template is not None,
        "tools": answers.calls is not None,
        "reasoning": answers.reasoning is not None,
        "structured_output": context.grammars.is_supported,
        "embeddings": model_info.reads_prompts,
    }
