"""Stop strings and characters, end to end: no way of reading an answer shows more, less or other text than another.

Others: vllm#57052 (stop text leaks), vllm#8468 (the last text is lost), vllm#13087 (empty first chunks), vllm#11089
(empty answers), vllm#14170, vllm#45636 (text is cut where nothing ends), llama.cpp#10914 (text comes twice). Every
partition of a text: tests/text/test_stop.py, tests/text/test_detokenizer.py, tests/engine/test_choice.py. A random
model says half characters and broken bytes all the time, so it makes a hard reader of streams.
"""

from __future__ import annotations

import asyncio
from typing import Any

from tests.regressions.whole import Whole, whole_server

NUM_ANSWERS = 3
NUM_NEW = 40
NO_SPECIAL = {str(token_id): -100.0 for token_id in range(4)}


def body_of(number: int) -> dict[str, Any]:
    """A completion with a text of its own."""
    return {"prompt": list(range(20 + number, 40 + number)), "max_tokens": NUM_NEW, "temperature": 1.0, "seed": number}


async def pieces(whole: Whole, **body: Any) -> tuple[list[str], str]:
    """The pieces of text of a stream, and why it ended."""
    events = await whole.streamed(**body)
    *parts, last = [event["choices"][0] for event in events]
    assert all(part["finish_reason"] is None for part in parts) and last["text"] == ""
    return [part["text"] for part in parts], last["finish_reason"]


async def text_of(whole: Whole, **body: Any) -> tuple[str, str]:
    """The text of a whole answer, and why it ended."""
    choice = (await whole.complete(**body)).json()["choices"][0]
    return choice["text"], choice["finish_reason"]


async def test_a_stream_is_the_decoding_of_its_tokens_in_pieces_that_are_not_empty():
    """The bytes of the tokens come with their log-probabilities: read at once, they are the answer."""
    async with whole_server() as whole:
        for number in range(NUM_ANSWERS):
            body = {"messages": [{"role": "user", "content": f"{number}"}], "max_tokens": NUM_NEW, "temperature": 1.0}
            body |= {"seed": number, "logit_bias": NO_SPECIAL}
            answer = await whole.client.post("/v1/chat/completions", json=body | {"logprobs": True})
            choice = answer.json()["choices"][0]
            read_at_once = bytes(byte for entry in choice["logprobs"]["content"] for byte in entry["bytes"])
            deltas = [event["choices"][0]["delta"] for event in await whole.streamed("/v1/chat/completions", **body)]
            parts = [delta["content"] for delta in deltas[1:] if "content" in delta]
            assert "".join(parts) == choice["message"]["content"] == read_at_once.decode("utf-8", "replace")
            assert all(parts), "a piece without text"


async def test_an_answer_ends_before_its_stop_string_wherever_that_stands():
    """Each answer is asked for again with beginnings, middles and ends of its own text as stop strings."""
    async with whole_server() as whole:
        for number in range(NUM_ANSWERS):
            body = body_of(number)
            text, _ = await text_of(whole, **body)
            places = range(0, len(text) - 1, max(1, len(text) // 6))
            stops = [text[place : place + length] for place in places for length in (1, 4)]
            asked = [body | {"stop": [stop, "never said"]} for stop in stops]
            streams = await asyncio.gather(*(pieces(whole, **each) for each in asked))
            wholes = await asyncio.gather(*(text_of(whole, **each) for each in asked))
            for stop, (parts, reason), (shown, whole_reason) in zip(stops, streams, wholes, strict=True):
                assert shown == text[: text.index(stop)], f"{stop!r} in {text!r}"
                assert "".join(parts) == shown and all(parts)
                assert reason == whole_reason == "stop"


async def test_a_stop_string_that_only_begins_at_the_end_costs_no_text():
    async with whole_server() as whole:
        for number in range(NUM_ANSWERS):
            body = body_of(number)
            text, _ = await text_of(whole, **body)
            stop = text[-3:] + "and no more"
            parts, reason = await pieces(whole, **body, stop=stop)
            assert ("".join(parts), reason) == (text, "length")
