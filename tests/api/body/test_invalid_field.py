"""What a client reads about a field that is wrong: what was given, and what is allowed."""

from __future__ import annotations

import msgspec
import pytest

from app.api.body.any_body import AnyBody
from app.api.body.invalid_field import MAX_VALUE_CHARS, allowed_values, invalid_field
from app.api.body.parse_embeddings import EmbeddingsBody
from app.api.body.schemas import ChatBody, CompletionBody, read_fields
from app.contract.errors import InvalidValue

CHAT: dict[str, object] = {"messages": [{"role": "user", "content": "Hi"}]}
COMPLETE: dict[type[AnyBody], dict[str, object]] = {
    ChatBody: CHAT,
    CompletionBody: {"prompt": "a"},
    EmbeddingsBody: {"input": "a"},
}


def message_of(kind: type[AnyBody], fields: dict[str, object]) -> tuple[str, str | None]:
    """The message and the parameter of the error of a body."""
    with pytest.raises(InvalidValue) as caught:
        read_fields(fields, kind, is_strict=False)
    return caught.value.message, caught.value.param


EFFORTS = "it must be one of none, minimal, low, medium, high, xhigh, max."
FORMATS = "it must be one of text, json_object, json_schema, json, regex."


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        (ChatBody, {"reasoning_effort": "zzz"}, f"reasoning_effort is 'zzz'; {EFFORTS}"),
        (ChatBody, {"reasoning_effort": 5}, f"reasoning_effort: Expected `str | null`, got `int`; {EFFORTS}"),
        (
            ChatBody,
            {"stream": True, "stream_options": {"slow_reader": "x"}},
            "stream_options.slow_reader is 'x'; it must be one of pause, coalesce, drop.",
        ),
        (
            ChatBody,
            {"messages": [{"role": "user", "content": [{"text": "a"}]}]},
            "messages[0].content[0].type is missing; it must be one of text, refusal.",
        ),
        (CompletionBody, {"response_format": {"type": "x"}}, f"response_format.type is 'x'; {FORMATS}"),
        (CompletionBody, {"response_format": {}}, f"response_format.type is missing; {FORMATS}"),
        (EmbeddingsBody, {"encoding_format": "x"}, "encoding_format is 'x'; it must be one of float, base64."),
        (EmbeddingsBody, {"pooling": "x"}, "pooling is 'x'; it must be one of mean, last."),
    ],
)
def test_the_message_says_what_is_allowed(kind: type[AnyBody], fields: dict[str, object], message: str):
    given, param = message_of(kind, {**COMPLETE[kind], **fields})
    assert given == message and given.startswith(str(param))


def test_a_missing_field_is_required():
    assert message_of(CompletionBody, {}) == ("prompt is missing; it is required.", "prompt")


def test_a_long_value_is_not_repeated():
    message, _ = message_of(ChatBody, {**CHAT, "reasoning_effort": "z" * 10_000})
    assert "zz...; it must be" in message and len(message) < 200 + MAX_VALUE_CHARS


@pytest.mark.parametrize("value", ["Object missing required field `model`", "x - at `$.n`", "`", "it's\n - at `$`"])
def test_a_value_that_looks_like_a_complaint_is_a_value(value: str):
    for fields, path in (({"reasoning_effort": value}, "reasoning_effort"),
                         ({"response_format": {"type": value}}, "response_format.type")):  # fmt: skip
        message, param = message_of(ChatBody, {**CHAT, **fields})
        assert param == path and message.startswith(f"{path} is {value!r}; it must be one of ")


@pytest.mark.parametrize("path", ["messages[0].role", "temperature", "nothing", "stop[1]", "metadata[...]", "a.b.c"])
def test_other_fields_have_no_list_of_values(path: str):
    assert allowed_values(ChatBody, path) == ()


def test_a_complaint_without_a_path_is_passed_on():
    error = invalid_field("Expected `object`, got `int`", {}, msgspec.defstruct("Body", []))
    assert error.message == "Expected `object`, got `int`." and error.param is None
