"""From the body of `POST /v1/embeddings` to a request for each input."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NamedTuple

import msgspec

from app.api.body.any_body import AnyBody
from app.api.body.parse_request import RequestContext, new_id, renaming
from app.api.body.prompts import read_prompts
from app.api.body.schemas import PROMPT_SCHEMA
from app.contract.errors import InvalidValue
from app.contract.requests import EngineRequest

MAX_INPUTS = 256
_ONE, _SEVERAL = PROMPT_SCHEMA["anyOf"][:2], PROMPT_SCHEMA["anyOf"][2:]
INPUT_SCHEMA = {"anyOf": [*_ONE, *({**kind, "maxItems": MAX_INPUTS} for kind in _SEVERAL)]}


class EmbeddingsBody(AnyBody, kw_only=True):
    """The body of `POST /v1/embeddings`, with at most `MAX_INPUTS` inputs; `pooling` and `normalize` are ours."""

    input: Annotated[Any, msgspec.Meta(extra_json_schema=INPUT_SCHEMA)]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None
    add_special_tokens: bool | None = None
    pooling: Literal["mean", "last"] | None = None
    normalize: bool | None = None


class EmbeddingsRequest(NamedTuple):
    """A checked body: a request for each input."""

    requests: list[EngineRequest]
    is_base64: bool
    ignored: tuple[str, ...]


def parse_embeddings(request: RequestContext) -> EmbeddingsRequest:
    """Check a body and tokenize its inputs (see `Parser`)."""
    body, ignored = request.read(EmbeddingsBody)
    request.context.check_model(body.model)
    builder, terms = request.builder, request.terms()
    pooling = builder.pooling(body.pooling, body.dimensions, is_normalized=body.normalize is not False)
    inputs = read_prompts(body.input, "input")
    if len(inputs) > MAX_INPUTS:
        raise InvalidValue(f"input has {len(inputs)} items; at most {MAX_INPUTS} are allowed.", param="input")
    answer_id = new_id("embd")
    requests = []
    for index, item in enumerate(inputs):
        with renaming({"prompt": f"input[{index}]" if len(inputs) > 1 else "input", "max_tokens": "input"}):
            prompt = builder.encode(item, adds_special_tokens=body.add_special_tokens is not False)
            requests.append(builder.pooled(f"{answer_id}-{index}", prompt, pooling, terms))
    return EmbeddingsRequest(requests, body.encoding_format == "base64", ignored)
