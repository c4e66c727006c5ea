"""The bytes of chat completions and chunks, compared one by one."""

import math
from dataclasses import replace

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.api.wire.api_request import ApiRequest
from app.api.wire.chat_format import ChatFormat
from app.api.wire.framing import NDJSON, SSE, Framing
from app.api.wire.openai_wire import OpenAiWire
from app.contract.events import ChoiceEnd, Finished, FinishReason, Timings, TokenDelta, Usage
from app.contract.packed_logprobs import Logprobs, TokenLogprobs
from app.streaming.sse_format import SseDecoder
from tests.fakes import WORDS, make_request

HEAD = '{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"gu%ide"'
FINISHED = Finished("chatcmpl-1", 0, ChoiceEnd(FinishReason.STOP), Usage(9, 2, 4), Timings(0, 0, 0))
LOGPROBS = Logprobs.of([TokenLogprobs(5, -math.inf, 2, (6, 5), (-0.25, -9.0))], 2)
TOKENS = {5: b"\xe2", 6: b" b"}


def request(*, include_usage: bool = False, **params: int) -> ApiRequest:
    return ApiRequest(
        make_request("chatcmpl-1", **params), "gu%ide", 1700000000, True, include_usage, (), TOKENS.__getitem__
    )


def chunks(request: ApiRequest, framing: Framing) -> OpenAiWire:
    return OpenAiWire(request, ChatFormat(request), framing)


def json_of(request: ApiRequest, choices: list[tuple[TokenDelta, ChoiceEnd]], usage: Usage) -> bytes:
    """The JSON body of choices that have one delta each."""
    wire = chunks(request, SSE)
    for delta, _ in choices:
        wire.keep(delta)
    ends = {delta.choice: end for delta, end in choices}
    return b"".join(wire.whole(ends, usage, FINISHED.timings).pieces)


def delta(text: str, logprobs: Logprobs | None = None, choice: int = 0) -> TokenDelta:
    return TokenDelta("chatcmpl-1", choice, 1, (5,), text, logprobs)


def event(choice: str, tail: str = "}", index: int = 0) -> bytes:
    return f'data: {HEAD},"choices":[{{"index":{index},{choice}}}]{tail}\n\n'.encode()


def test_chat_events_have_exactly_these_bytes():
    encoder = chunks(request(), SSE)
    assert b"".join(encoder.first()) == event(
        '"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null'
    )
    assert encoder.delta(delta(' "ü')) == event('"delta":{"content":" \\"ü"},"logprobs":null,"finish_reason":null')
    assert encoder.finish(FINISHED) == event('"delta":{},"logprobs":null,"finish_reason":"stop"')
    assert encoder.last(FINISHED.usage, FINISHED.timings) == SSE.end


@pytest.mark.parametrize(("reason", "shown"), [("repetition", '"repetition"'), ("\n", '"\\n"'), (7, "7"), (0, "0")])
def test_an_end_has_its_stop_reason(reason, shown):
    end = replace(FINISHED, end=ChoiceEnd(FinishReason.STOP, reason))
    assert chunks(request(), SSE).finish(end) == event(
        f'"delta":{{}},"logprobs":null,"finish_reason":"stop","stop_reason":{shown}'
    )
    [found] = orjson.loads(json_of(request(), [(delta("Hi"), end.end)], FINISHED.usage))["choices"]
    assert found["stop_reason"] == reason


def test_every_choice_has_a_role_its_text_and_an_end():
    encoder = chunks(request(n=2), SSE)
    role = '"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null'
    assert b"".join(encoder.first()) == event(role) + event(role, index=1)
    text = '"delta":{"content":"x"},"logprobs":null,"finish_reason":null'
    assert encoder.delta(delta("x", choice=1)) == event(text, index=1)
    end = '"delta":{},"logprobs":null,"finish_reason":"stop"'
    assert encoder.finish(replace(FINISHED, choice=1)) == event(end, index=1)


def test_with_include_usage_chat_events_have_usage_null_and_a_last_one_has_the_counts():
    encoder = chunks(request(include_usage=True), SSE)
    tail = ',"usage":null}'
    assert b"".join(encoder.first()).endswith((tail + "\n\n").encode())
    assert encoder.delta(delta("x")) == event('"delta":{"content":"x"},"logprobs":null,"finish_reason":null', tail)
    assert encoder.finish(FINISHED) == event('"delta":{},"logprobs":null,"finish_reason":"stop"', tail)
    usage = (
        '"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2,"total_tokens":11,'
        '"prompt_tokens_details":{"cached_tokens":4}}'
    )
    assert encoder.last(FINISHED.usage, FINISHED.timings) == f"data: {HEAD},{usage}}}\n\n".encode() + SSE.end


def test_chat_logprobs_have_openais_shape_and_no_infinity():
    encoder = chunks(request(), SSE)
    entry = (
        '{"token":"\ufffd","logprob":-9999.0,"bytes":[226],"top_logprobs":['
        '{"token":" b","logprob":-0.25,"bytes":[32,98]},{"token":"\ufffd","logprob":-9.0,"bytes":[226]}]}'
    )
    logprobs = f'"logprobs":{{"content":[{entry}],"refusal":null}}'
    assert encoder.delta(delta("", LOGPROBS)) == event(f'"delta":{{"content":""}},{logprobs},"finish_reason":null')


def test_tokens_without_text_make_no_event():
    assert chunks(request(), SSE).delta(delta("")) == b""


def test_ndjson_is_the_same_payload_on_a_line():
    sse, ndjson = chunks(request(), SSE), chunks(request(), NDJSON)
    assert b"data: " + ndjson.delta(delta("x")) + b"\n" == sse.delta(delta("x"))


def test_a_body_is_one_chat_completion():
    choices = [(delta("Hi", LOGPROBS), ChoiceEnd(FinishReason.STOP))]
    body = orjson.loads(json_of(request(logprobs=2), choices, FINISHED.usage))
    assert body["object"] == "chat.completion"
    assert body["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hi", "refusal": None},
            "logprobs": {
                "content": [
                    {"token": "\ufffd", "logprob": -9999.0, "bytes": [226], "top_logprobs": [
                        {"token": " b", "logprob": -0.25, "bytes": [32, 98]},
                        {"token": "\ufffd", "logprob": -9.0, "bytes": [226]},
                    ]}
                ],
                "refusal": None,
            },
            "finish_reason": "stop",
        }
    ]  # fmt: skip
    assert body["usage"]["prompt_tokens_details"] == {"cached_tokens": 4}


def test_a_body_has_its_choices_in_order_and_one_usage():
    choices = [
        (delta("b", choice=1), ChoiceEnd(FinishReason.STOP)),
        (delta("a"), ChoiceEnd(FinishReason.LENGTH)),
    ]
    body = orjson.loads(json_of(request(n=2), choices, Usage(9, 5)))
    found = [(one["index"], one["message"]["content"], one["finish_reason"]) for one in body["choices"]]
    assert found == [(0, "a", "length"), (1, "b", "stop")]
    assert body["usage"]["total_tokens"] == 14


@given(
    st.lists(st.tuples(st.integers(0, 3), st.text(st.characters(exclude_categories=["Cs"])) | st.sampled_from(WORDS)))
)
def test_any_texts_in_any_order_can_be_decoded_again_from_sse_and_ndjson(pieces):
    deltas = [delta(text, choice=choice) for choice, text in pieces]
    sse, ndjson = (b"".join(map(chunks(request(n=4), framing).delta, deltas)) for framing in (SSE, NDJSON))
    events, lines = SseDecoder().feed(sse), ndjson.decode().splitlines()
    for payloads in (events, lines):
        choices = [choice for payload in payloads for choice in orjson.loads(payload)["choices"]]
        found = [(choice["index"], choice["delta"]["content"]) for choice in choices]
        assert found == [(choice, text) for choice, text in pieces if text]
