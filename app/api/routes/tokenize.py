"""Routes that tokenize without generating: `/tokenize`, `/detokenize`, `/apply-template` and the count of a chat.

Bodies are checked, bounded and encoded as those of completions and chats, on the same threads. `/tokenize` and
`/detokenize` accept the bodies of vLLM and of llama.cpp, and answer each in its own shape.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import orjson
from starlette.requests import Request
from starlette.responses import Response

from app.api.body.parse_chat import AS_MESSAGES, chat_prompt
from app.api.body.parse_request import Parser, RequestContext, parse_post, renaming
from app.api.body.schemas import ChatBody
from app.api.body.tokenize_bodies import (
    DetokenizeBody,
    TokenizeContent,
    TokenizeMessages,
    TokenizePrompt,
    read_tokenize,
)
from app.api.wire.response_head import ignored_header
from app.contract.admission import too_long
from app.contract.errors import InvalidValue, UnsupportedParameter
from app.text.template.spelled_tokens import encode_as_text
from app.text.tokens.tokenizer import Tokenizer

ITEMS_AT_ONCE = 1024  # of a list that is written as JSON


class Answer(NamedTuple):
    """The fields of a response, as JSON, and the names of the ignored fields of its request."""

    body: bytes
    ignored: tuple[str, ...]


async def tokenize(request: Request) -> Response:
    """Answer with the token ids of a text, or of messages."""
    return await _answer(request, tokenized)


async def detokenize(request: Request) -> Response:
    """Answer with the text of token ids."""
    return await _answer(request, detokenized)


async def apply_template(request: Request) -> Response:
    """Answer with the prompt of a chat as text."""
    return await _answer(request, templated)


async def count_input_tokens(request: Request) -> Response:
    """Answer with the number of tokens in the prompt of a chat."""
    return await _answer(request, counted)


async def _answer(request: Request, parser: Parser[Answer]) -> Response:
    body, ignored = await parse_post(request, parser)
    return Response(body, headers=ignored_header(ignored), media_type="application/json")


def tokenized(request: RequestContext) -> Answer:
    """Return the answer to a body of `/tokenize` (see `Parser`)."""
    body, ignored = read_tokenize(request)
    request.context.check_model(body.model)
    tokenizer, limit = request.context.text.tokenizer, request.model_info.max_model_len
    if isinstance(body, TokenizeContent):
        with renaming({"prompt": "content"}):
            return Answer(orjson.dumps({"tokens": _tokens_of_content(request, body)}), ignored)
    if isinstance(body, TokenizeMessages):
        if body.add_special_tokens:
            raise UnsupportedParameter(
                "add_special_tokens is not supported with messages, whose template writes them; leave it out.",
                param="add_special_tokens",
            )
        token_ids = _tokens_of_messages(request, body)
    else:
        assert isinstance(body, TokenizePrompt)
        is_added = body.add_special_tokens is not False
        token_ids = request.builder.encode(body.prompt, adds_special_tokens=is_added).token_ids
    strings = _json_list(map(tokenizer.token_string, token_ids)) if body.return_token_strs else None
    counts = {"count": len(token_ids), "max_model_len": limit}
    return Answer(orjson.dumps({**counts, "tokens": token_ids, "token_strs": strings}), ignored)


def detokenized(request: RequestContext) -> Answer:
    """Return the answer to a body of `/detokenize` (see `Parser`): the text under both servers' names."""
    body, ignored = request.read(DetokenizeBody)
    request.context.check_model(body.model)
    info = request.model_info
    if len(body.tokens) > info.max_model_len:
        raise too_long(info.max_model_len, f"tokens has {len(body.tokens)} ids", param="tokens")
    if wrong := [token_id for token_id in body.tokens if not 0 <= token_id < info.vocab_size]:
        raise InvalidValue(
            f"tokens contains the token id {wrong[0]}; it must be between 0 and {info.vocab_size - 1}.", param="tokens"
        )
    text = request.context.text.tokenizer.decode(body.tokens, skip_special_tokens=False)
    return Answer(orjson.dumps({"prompt": text, "content": text}), ignored)


def templated(request: RequestContext) -> Answer:
    """Return the answer to a body of `/apply-template` (see `Parser`)."""
    body, ignored = request.read(ChatBody)
    prompt = chat_prompt(request, body)
    with renaming(AS_MESSAGES):
        return Answer(orjson.dumps({"prompt": prompt.text()}), ignored)


def counted(request: RequestContext) -> Answer:
    """Return the answer to a chat body whose tokens are counted, however many (see `Parser`)."""
    body, ignored = request.read(ChatBody)
    prompt = chat_prompt(request, body)
    with renaming(AS_MESSAGES):
        return Answer(orjson.dumps({"input_tokens": prompt.count()}), ignored)


def _tokens_of_messages(request: RequestContext, body: ChatBody) -> Sequence[int]:
    prompt = chat_prompt(request, body)
    with renaming(AS_MESSAGES):
        return prompt.encode().token_ids


def _tokens_of_content(request: RequestContext, body: TokenizeContent) -> Sequence[int] | orjson.Fragment:
    tokenizer, limit = request.context.text.tokenizer, request.model_info.max_model_len
    token_ids: Sequence[int]
    if body.parse_special is False:
        tokenizer.check_num_chars(len(body.content), limit)
        token_ids = encode_as_text(tokenizer, body.content, add_special_tokens=bool(body.add_special), max_tokens=limit)
    else:
        token_ids = request.builder.encode(body.content, adds_special_tokens=bool(body.add_special)).token_ids
    if not body.with_pieces:
        return token_ids
    return _json_list({"id": token_id, "piece": _piece(tokenizer, token_id)} for token_id in token_ids)


def _json_list(items: Iterator[object]) -> orjson.Fragment:
    """Return a list as JSON. It is written in pieces: the objects of a long one would take tens of megabytes."""
    pieces = iter(lambda: [*islice(items, ITEMS_AT_ONCE)], [])
    return orjson.Fragment(b"[%b]" % b",".join(orjson.dumps(piece)[1:-1] for piece in pieces))


def _piece(tokenizer: Tokenizer, token_id: int) -> str | list[int]:
    """Return the text of a token, or its bytes if they are not complete characters."""
    piece = tokenizer.token_bytes(token_id)
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return list(piece)
