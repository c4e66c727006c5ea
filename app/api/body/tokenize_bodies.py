"""The bodies of `POST /tokenize`, of which there are three kinds, and of `POST /detokenize`."""

from __future__ import annotations

from app.api.body.any_body import AnyBody
from app.api.body.json_body import parse_object
from app.api.body.parse_request import RequestContext
from app.api.body.schemas import ChatBody
from app.contract.errors import InvalidValue


class TokenizePrompt(AnyBody, kw_only=True):
    """The body of `POST /tokenize` with a text, as vLLM's."""

    prompt: str
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None


class TokenizeMessages(ChatBody, kw_only=True):
    """The body of `POST /tokenize` with messages: that of a chat, and two fields of vLLM's."""

    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None


class TokenizeContent(AnyBody, kw_only=True):
    """The body of `POST /tokenize` with a text, as llama.cpp's."""

    content: str
    add_special: bool | None = None
    parse_special: bool | None = None
    with_pieces: bool | None = None


class DetokenizeBody(AnyBody, kw_only=True):
    """The body of `POST /detokenize`."""

    tokens: list[int]


KINDS: dict[str, type[AnyBody]] = {"prompt": TokenizePrompt, "messages": TokenizeMessages, "content": TokenizeContent}


def read_tokenize(request: RequestContext) -> tuple[AnyBody, tuple[str, ...]]:
    """Return a body of `/tokenize` in the class of its kind, and the names of its ignored fields. Any thread.

    Raises:
        JsonInvalid, InvalidValue, UnsupportedParameter: see `RequestContext.read`; or the text is missing, or is given
            in several fields.
    """
    fields = parse_object(request.body)
    given = [name for name in KINDS if fields.get(name) is not None]
    if len(given) != 1:
        problem = f"{' and '.join(given)} are given" if given else "The text is missing"
        raise InvalidValue(f"{problem}; send one of {', '.join(KINDS)}.", param=(given or ["prompt"])[-1])
    return request.check(fields, KINDS[given[0]])
