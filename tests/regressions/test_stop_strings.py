"""Stop strings and characters, end to end: streamed and unstreamed outputs have the same text.

Others: vllm#57052 (stop text leaks), vllm#8468 (the last text is lost), vllm#13087 (empty first chunks), vllm#11089
(empty outputs), vllm#14170, vllm#45636 (text is cut at a wrong position), llama.cpp#10914 (text is duplicated). Every
partition of a text: tests/text/test_stop.py, tests/text/test_detokenizer.py, tests/engine/test_choice.py. A model with
random weights often generates incomplete characters and invalid bytes, which makes the test harder.
"""

from __future__ import annotations

import asyncio
from typing import Any

from tests.regressions.running_server import RunningServer, run_server

NUM_OUTPUTS = 3
NUM_NEW = 40
NO_SPECIAL = {str(token_id): -100.0 for token_id in range(4)}


def body_of(number: int) -> dict[str, Any]:
    """A completion request whose output differs from that of other numbers."""
    return {"prompt": list(range(20 + number, 40 + number)), "max_tokens": NUM_NEW, "temperature": 1.0, "seed": number}


async def stream_chunks(server: RunningServer, **body: Any) -> tuple[list[str], str]:
    """The text chunks of a stream, and its finish reason."""
    events = await server.streamed(**body)
    *parts, last = [event["choices"][0] for event in events]
    assert all(part["finish_reason"] is None for part in parts) and last["text"] == ""
    return [part["text"] for part in parts], last["finish_reason"]


async def text_of(server: RunningServer, **body: Any) -> tuple[str, str]:
    """The text of an unstreamed output, and its finish reason."""
    choice = (await server.complete(**body)).json()["choices"][0]
    return choice["text"], choice["finish_reason"]


async def test_a_stream_is_the_decoding_of_its_tokens_without_empty_chunks():
    """The bytes in the log-probabilities, decoded at once, are the text."""
    async with run_server() as server:
        for number in range(NUM_OUTPUTS):
            body = {"messages": [{"role": "user", "content": f"{number}"}], "max_tokens": NUM_NEW, "temperature": 1.0}
            body |= {"seed": number, "logit_bias": NO_SPECIAL}
            answer = await server.client.post("/v1/chat/completions", json=body | {"logprobs": True})
            choice = answer.json()["choices"][0]
            all_bytes = bytes(byte for entry in choice["logprobs"]["content"] for byte in entry["bytes"])
            deltas = [event["choices"][0]["delta"] for event in await server.streamed("/v1/chat/completions", **body)]
            parts = [delta["content"] for delta in deltas[1:] if "content" in delta]
            assert "".join(parts) == choice["message"]["content"] == all_bytes.decode("utf-8", "replace")
            assert all(parts), "a chunk without text"


async def test_an_output_ends_before_its_stop_string_at_any_position():
    """Each request is repeated with parts of its own output as stop strings."""
    async with run_server() as server:
        for number in range(NUM_OUTPUTS):
            body = body_of(number)
            text, _ = await text_of(server, **body)
            positions = range(0, len(text) - 1, max(1, len(text) // 6))
            stops = [text[position : position + length] for position in positions for length in (1, 4)]
            bodies = [body | {"stop": [stop, "never generated"]} for stop in stops]
            streams = await asyncio.gather(*(stream_chunks(server, **each) for each in bodies))
            unstreamed = await asyncio.gather(*(text_of(server, **each) for each in bodies))
            for stop, (parts, reason), (full_text, full_reason) in zip(stops, streams, unstreamed, strict=True):
                assert full_text == text[: text.index(stop)], f"{stop!r} in {text!r}"
                assert "".join(parts) == full_text and all(parts)
                assert reason == full_reason == "stop"


async def test_an_incomplete_stop_string_at_the_end_loses_no_text():
    async with run_server() as server:
        for number in range(NUM_OUTPUTS):
            body = body_of(number)
            text, _ = await text_of(server, **body)
            stop = text[-3:] + "and no more"
            parts, reason = await stream_chunks(server, **body, stop=stop)
            assert ("".join(parts), reason) == (text, "length")
