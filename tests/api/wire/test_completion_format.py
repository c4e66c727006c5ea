"""The bytes of completions and their chunks."""

import orjson

from app.api.wire.api_request import ApiRequest
from app.api.wire.completion_format import CompletionFormat
from app.api.wire.framing import SSE
from app.api.wire.openai_wire import OpenAiWire
from app.contract.events import ChoiceEnd, Finished, FinishReason, Timings, TokenDelta, Usage
from app.contract.packed_logprobs import Logprobs, TokenLogprobs
from tests.fakes import make_request as engine_request

HEAD = '{"id":"cmpl-1","object":"text_completion","created":1700000000,"model":"guide"'
TOKENS = [" a", " aü", "a", "b", "c", "ab"]
FINISHED = Finished("cmpl-1", 0, ChoiceEnd(FinishReason.LENGTH), Usage(9, 2), Timings(0, 0, 0))


def make_request(*, include_usage: bool = False, **params: int) -> ApiRequest:
    return ApiRequest(engine_request("cmpl-1", **params), "guide", 1700000000, True, include_usage, (), bytes_of)


def make_chunks(*, include_usage: bool = False, **params: int) -> OpenAiWire:
    request = make_request(include_usage=include_usage, **params)
    return OpenAiWire(request, CompletionFormat(request), SSE)


def json_of(choices: list[tuple[TokenDelta, FinishReason]], usage: Usage, **params: int) -> bytes:
    """The JSON body of choices that have one delta each."""
    wire = make_chunks(**params)
    for delta, _ in choices:
        wire.keep(delta)
    ends = {delta.choice: ChoiceEnd(reason) for delta, reason in choices}
    return b"".join(wire.whole(ends, usage, FINISHED.timings).pieces)


def bytes_of(token_id: int) -> bytes:
    return TOKENS[token_id].encode()


def logprobs_of(*tokens: str) -> Logprobs:
    ids = map(TOKENS.index, tokens)
    return Logprobs.of([TokenLogprobs(token_id, -0.5, 1, (token_id,), (-0.5,)) for token_id in ids], 1)


def test_completion_events_have_exactly_these_bytes():
    chunks = make_chunks()
    assert b"".join(chunks.first()) == b""
    assert chunks.delta(TokenDelta("cmpl-1", 0, 1, (5,), " a")) == (
        f'data: {HEAD},"choices":[{{"index":0,"text":" a","logprobs":null,"finish_reason":null}}]}}\n\n'.encode()
    )
    assert chunks.delta(TokenDelta("cmpl-1", 0, 2, (6,), "")) == b""
    assert chunks.finish(FINISHED) == (
        f'data: {HEAD},"choices":[{{"index":0,"text":"","logprobs":null,"finish_reason":"length"}}]}}\n\n'.encode()
    )
    assert chunks.last(FINISHED.usage, FINISHED.timings) == SSE.end


def test_with_include_usage_completion_events_have_usage_null_and_a_last_one_the_counts():
    chunks = make_chunks(include_usage=True)
    assert chunks.finish(FINISHED).endswith(b'"finish_reason":"length"}],"usage":null}\n\n')
    usage = (
        '"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2,"total_tokens":11,'
        '"prompt_tokens_details":{"cached_tokens":0}}'
    )
    assert chunks.last(FINISHED.usage, FINISHED.timings) == f"data: {HEAD},{usage}}}\n\n".encode() + SSE.end


def test_completion_logprobs_are_parallel_lists_with_offsets_across_chunks():
    chunks = make_chunks()
    found = [
        chunks.delta(TokenDelta("cmpl-1", 0, 1, (5, 5), " aüb", logprobs_of(" aü", "b"))),
        chunks.delta(TokenDelta("cmpl-1", 0, 3, (5,), "c", logprobs_of("c"))),
    ]
    lists = [orjson.loads(chunk.removeprefix(b"data: "))["choices"][0]["logprobs"] for chunk in found]
    assert lists[0] == {
        "tokens": [" aü", "b"],
        "token_logprobs": [-0.5, -0.5],
        "top_logprobs": [{" aü": -0.5}, {"b": -0.5}],
        "text_offset": [0, 3],
    }
    assert lists[1]["text_offset"] == [4]


def test_text_offsets_are_counted_per_choice():
    chunks = make_chunks(n=2)
    found = [chunks.delta(TokenDelta("cmpl-1", choice, 1, (5,), "ab", logprobs_of("ab"))) for choice in (0, 1, 0)]
    found.append(chunks.finish(Finished("cmpl-1", 1, ChoiceEnd(FinishReason.STOP), Usage(9, 2), Timings(0, 0, 0))))
    choices = [orjson.loads(chunk.removeprefix(b"data: "))["choices"][0] for chunk in found]
    assert [choice["index"] for choice in choices] == [0, 1, 0, 1]
    assert [choice["logprobs"]["text_offset"] for choice in choices[:3]] == [[0], [0], [2]]
    deltas = [TokenDelta("cmpl-1", choice, 1, (3, 4), "ab", logprobs_of("a", "b")) for choice in (0, 1)]
    body = orjson.loads(json_of([(one, FinishReason.STOP) for one in deltas], Usage(9, 4), n=2, logprobs=1))
    assert [(one["index"], one["logprobs"]["text_offset"]) for one in body["choices"]] == [(0, [0, 1]), (1, [0, 1])]


def test_a_body_is_one_text_completion():
    delta = TokenDelta("cmpl-1", 0, 1, (5,), "ab")
    body = orjson.loads(json_of([(delta, FinishReason.LENGTH)], FINISHED.usage))
    assert body == {
        "id": "cmpl-1",
        "object": "text_completion",
        "created": 1700000000,
        "model": "guide",
        "choices": [{"index": 0, "text": "ab", "logprobs": None, "finish_reason": "length"}],
        "usage": {
            "prompt_tokens": 9,
            "completion_tokens": 2,
            "total_tokens": 11,
            "prompt_tokens_details": {"cached_tokens": 0},
        },
    }


def test_the_sampled_token_is_always_in_top_logprobs():
    other, name = TOKENS.index("b"), TOKENS.index("c")
    for best, values, expected in (
        ((), (), {"c": -3.0}),
        ((other,), (-0.25,), {"b": -0.25, "c": -3.0}),
        ((other, name), (-0.25, -3.0), {"b": -0.25, "c": -3.0}),
    ):
        logprobs = Logprobs.of([TokenLogprobs(name, -3.0, 2, best, values)], len(best))
        delta = TokenDelta("cmpl-1", 0, 1, (name,), "c", logprobs)
        chunk = make_chunks().delta(delta)
        lists = orjson.loads(chunk.removeprefix(b"data: "))["choices"][0]["logprobs"]
        assert lists["top_logprobs"] == [expected]
        body = json_of([(delta, FinishReason.STOP)], FINISHED.usage, logprobs=len(best))
        assert orjson.loads(body)["choices"][0]["logprobs"] == lists
