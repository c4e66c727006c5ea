"""`stream_options.continuous_usage_stats`: token counts in every chunk, as in vLLM; and errors in a stream."""

import json

import pytest

from app.api.wire.api_request import ApiRequest
from app.api.wire.chat_format import ChatFormat
from app.api.wire.framing import NDJSON, SSE
from app.api.wire.openai_wire import OpenAiWire
from app.contract.errors import ErrorInfo
from tests.api.serving import client_of, make_app
from tests.fakes import FakeEngine, make_request

BODIES = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": 'Say "usage":null}'}]},
    "/v1/completions": {"prompt": "Hi"},
}


async def usages_of(path, accept="text/event-stream", **options):
    """For each chunk, its choice (None in the last one) and its usage."""
    engine = FakeEngine()
    body = BODIES[path] | {"n": 2, "max_tokens": 3, "stream": True, "stream_options": options}
    async with client_of(await make_app(engine), accept=accept) as client:
        answer = await client.post(path, json=body)
    assert answer.status_code == 200
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines()]
    chunks = [json.loads(line) for line in lines if line.startswith("{")]
    usages = [
        (chunk["choices"][0]["index"] if chunk["choices"] else None, chunk.get("usage", "none")) for chunk in chunks
    ]
    return usages, len(engine.requests[0].prompt_token_ids)


@pytest.mark.parametrize("accept", ["text/event-stream", "application/x-ndjson"])
@pytest.mark.parametrize("path", BODIES)
async def test_with_continuous_usage_every_chunk_has_the_counts_of_its_choice(path, accept):
    usages, num_prompt = await usages_of(path, accept, include_usage=True, continuous_usage_stats=True)
    *chunks, (last, total) = usages
    assert all(usage["prompt_tokens"] == num_prompt for _, usage in chunks)
    assert all(usage["total_tokens"] == num_prompt + usage["completion_tokens"] for _, usage in chunks)
    for choice in (0, 1):
        counts = [usage["completion_tokens"] for index, usage in chunks if index == choice]
        assert counts == sorted(counts) and counts[-1] == 3 and set(counts) <= {0, 1, 2, 3}
        assert counts[0] == (0 if "chat" in path else 1)
    assert (last, total["completion_tokens"]) == (None, 6)


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize(
    ("options", "usage"), [({"include_usage": True}, None), ({"continuous_usage_stats": True}, "none")]
)
async def test_without_continuous_usage_no_chunk_has_counts(path, options, usage):
    usages, _ = await usages_of(path, **options)
    assert {str(found) for index, found in usages if index is not None} == {str(usage)}


@pytest.mark.parametrize(("framing", "after"), [(SSE, "\n\n"), (NDJSON, "\n")], ids=["SSE", "NDJSON"])
def test_an_error_is_one_line_for_every_client(framing, after):
    request = ApiRequest(make_request(), "guide", 1700000000, True, False, (), bytes)
    wire = OpenAiWire(request, ChatFormat(request), framing)
    event = wire.error(ErrorInfo("engine_error", "It\u2028broke\x85.")).decode()
    assert event.endswith(after) and len(event.splitlines()) == len(after)
    assert json.loads(event.removeprefix("data: "))["error"]["message"] == "It\u2028broke\x85."
