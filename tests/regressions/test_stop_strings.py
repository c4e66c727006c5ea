"""Stop strings and characters, end to end: streamed and unstreamed outputs have the same text.

Others: vllm#57052 (stop text leaks), vllm#8468 (the last text is lost), vllm#13087 (empty first chunks), vllm#11089
(empty outputs), vllm#14170, vllm#45636 (text is cut at a wrong position), llama.cpp#10914 (text is duplicated). Every
partition of a text: tests/text/tokens/test_stop.py, tests/text/tokens/test_detokenizer.py, tests/engine/test_choice.py.
A model with random weights often generates incomplete characters and invalid bytes, which makes the test harder.
"""

from __future__ import annotations

import asyncio
import codecs
from typing import Any

import pytest

from tests.regressions.running_server import RunningServer, run_server

NUM_OUTPUTS = 3
NUM_NEW = 40
NO_SPECIAL = {str(token_id): -100.0 for token_id in range(4)}


def complete(raw: bytes) -> str:
    """The text of bytes, without a character that they leave incomplete."""
    return codecs.getincrementaldecoder("utf-8")("replace").decode(raw)


def bytes_of(piece: str | list[int]) -> bytes:
    """The bytes of a piece of /tokenize."""
    return piece.encode() if isinstance(piece, str) else bytes(piece)


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
            assert "".join(parts) == choice["message"]["content"] == complete(all_bytes)
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


async def test_no_stop_string_ends_an_output_before_min_tokens():
    """Each character of an output is a stop string of the same request."""
    async with run_server() as server:
        for number in range(NUM_OUTPUTS):
            body = body_of(number) | {"logit_bias": NO_SPECIAL}
            text, _ = await text_of(server, **body)
            for min_tokens in (2, 8, NUM_NEW):
                stop = sorted(set(text))[:16]
                answer = (await server.complete(**body, min_tokens=min_tokens, stop=stop)).json()
                (choice,) = answer["choices"]
                assert answer["usage"]["completion_tokens"] >= min_tokens
                assert text.startswith(choice["text"])
                parts, reason = await stream_chunks(server, **body, min_tokens=min_tokens, stop=stop)
                assert ("".join(parts), reason) == (choice["text"], choice["finish_reason"])


@pytest.mark.parametrize("echo", [False, True])
async def test_an_answer_to_tokens_that_end_within_a_character_begins_with_it(echo):
    """Each token is an answer of its own to all tokens before it; together they are the text."""
    text = "so 🙂é 猫🙂 é"
    async with run_server() as server:
        found = (await server.client.post("/tokenize", json={"prompt": text, "add_special_tokens": False})).json()
        pieces = (await server.client.post("/tokenize", json={"content": text, "with_pieces": True})).json()["tokens"]
        ids, raw = found["tokens"], [bytes_of(piece["piece"]) for piece in pieces]
        assert b"".join(raw).decode() == text and len(raw) == len(ids) > len(text) - 2
        bodies = [
            {"prompt": ids[:num], "logit_bias": {str(ids[num]): 100}, "max_tokens": 1, "logprobs": 0, "echo": echo}
            for num in range(1, len(ids))
        ]
        answers = await asyncio.gather(*(server.complete(**body) for body in bodies))
    for num, answer in enumerate(answers, start=1):
        (choice,) = answer.json()["choices"]
        before, after = complete(b"".join(raw[:num])), complete(b"".join(raw[: num + 1]))
        assert choice["text"] == (after if echo else after.removeprefix(before))
        assert choice["logprobs"]["text_offset"][-1] == (len(before) if echo else 0)


async def test_offsets_count_the_character_that_an_answer_completes():
    async with run_server() as server:
        token_ids = (await server.client.post("/tokenize", json={"content": "🙂"})).json()["tokens"]
        *first, last = token_ids
        body = {"prompt": [30, *first], "logit_bias": {str(last): 100}, "max_tokens": 2, "logprobs": 0}
        choice = (await server.complete(**body)).json()["choices"][0]
        assert choice["text"].startswith("🙂")
        assert choice["logprobs"]["text_offset"] == [0, 1]
