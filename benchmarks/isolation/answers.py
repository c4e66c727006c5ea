"""Attacks by answers that cost: many at once, with many log-probabilities, or never read."""

from __future__ import annotations

import asyncio
import json
import random

from benchmarks.isolation.attack import CHAT, COMPLETIONS, chat
from benchmarks.isolation.attack_client import Client

STORY = [{"role": "user", "content": "Tell me a story."}]
SCORED = {"n": 16, "logprobs": True, "top_logprobs": 20, "max_tokens": 1900, "temperature": 1}


async def idle(client: Client) -> None:
    """Do nothing."""
    client.note("nothing")
    await asyncio.sleep(3600)


async def longest_prompt(client: Client) -> None:
    """Ask for little after a prompt as long as the context."""
    ids = [random.randrange(10, 3000) for _ in range(client.context - 64)]
    await client.post(COMPLETIONS, json.dumps({"prompt": ids, "max_tokens": 32, "ignore_eos": True}).encode())


async def one_expert(client: Client) -> None:
    """Ask for little after a long prompt of one token again and again: the same experts compute all of it."""
    ids = [random.randrange(10, 3000)] * (min(client.context, 32_768) - 64)
    await client.post(COMPLETIONS, json.dumps({"prompt": ids, "max_tokens": 32, "ignore_eos": True}).encode())


async def scored_prompts(client: Client) -> None:
    """Ask for the log-probabilities of a long prompt."""
    ids = [random.randrange(10, 3000) for _ in range(min(4096, client.context - 8))]
    fields = {"prompt": ids, "echo": True, "logprobs": 20, "max_tokens": 1, "stream": random.random() < 0.5}
    await client.post(COMPLETIONS, json.dumps(fields).encode())


async def new_prompts(client: Client) -> None:
    """Ask for one token after a long prompt that nobody has sent."""
    ids = [random.randrange(10, 3000) for _ in range(4000)]
    await client.post(COMPLETIONS, json.dumps({"prompt": ids, "max_tokens": 1}).encode())


async def logprobs_streamed(client: Client) -> None:
    """Read log-probabilities of 16 choices as a stream."""
    await client.post(CHAT, chat(stream=True, **SCORED))


async def logprobs_whole(client: Client) -> None:
    """Ask for log-probabilities of 16 choices in one body."""
    await client.post(CHAT, chat(**SCORED))


async def logprobs_unread(client: Client) -> None:
    """Ask for a stream that merges what waits, and do not read it."""
    await _ask_without_reading(client, chat(stream=True, stream_options={"slow_reader": "coalesce"}, **SCORED))


async def whole_unread(client: Client) -> None:
    """Ask for a large body, and do not read it."""
    await _ask_without_reading(client, chat(**SCORED))


async def dropped(client: Client) -> None:
    """Let 16 choices be dropped because their client is slow."""
    opened = await client.socket()
    request = {"messages": STORY, "n": 16, "ignore_eos": True, "max_tokens": 1900, "temperature": 1}
    request |= {"stream_options": {"slow_reader": "drop"}}
    await opened.send(json.dumps({"t": "start", "id": "1", "request": request, "credit": 1}))
    await client.hear(opened, "error")
    await opened.close()


async def usage_in_chunks(client: Client) -> None:
    """Read 16 choices with the usage in every chunk."""
    options = {"include_usage": True, "continuous_usage_stats": True}
    await client.post(CHAT, chat(n=16, max_tokens=1900, temperature=1, stream=True, stream_options=options))


async def flat_top_p(client: Client) -> None:
    """Read 16 choices with all penalties, of nearly all tokens."""
    fields = {"temperature": 2, "top_p": 0.95, "presence_penalty": 1, "frequency_penalty": 1}
    await client.post(CHAT, chat(n=16, max_tokens=1900, repetition_penalty=1.2, stream=True, **fields))


async def biases(client: Client) -> None:
    """Read 16 choices with as many biases as are allowed."""
    bias = {str(token_id): 1 for token_id in range(10, 310)}
    fields = {"logit_bias": bias, "min_tokens": 1000, "stop_token_ids": list(range(5, 8)), "temperature": 1}
    await client.post(CHAT, chat(n=16, max_tokens=1900, stream=True, **fields))


async def loops(client: Client) -> None:
    """Read 16 choices of one token again and again, which another one interrupts about every 250 tokens."""
    fields = {"logit_bias": {"10": 100, "11": 94.5}, "temperature": 1, "repetition_stop": True}
    await client.post(CHAT, chat(n=16, max_tokens=1900, stream=True, **fields))


async def beams(client: Client) -> None:
    """Ask for 1,000 tokens of beam search."""
    await client.post(CHAT, chat(use_beam_search=True, n=8, temperature=0, max_tokens=1000))


async def many_answers(client: Client) -> None:
    """Read a long answer."""
    await client.post(CHAT, chat(max_tokens=1900, stream=True))


async def wide_answers(client: Client) -> None:
    """Read 16 long answers to one prompt; several of them want more seats together than there are."""
    fields = {"n": 16, "max_tokens": 1500, "ignore_eos": True, "temperature": 1, "stream": True}
    await client.post(COMPLETIONS, json.dumps({"prompt": f"{random.random()}", **fields}).encode())


async def prompts(client: Client) -> None:
    """Read the long answers to 16 prompts of one body."""
    texts = [f"{random.random()} Tell me a story." for _ in range(16)]
    fields = {"max_tokens": 1000, "ignore_eos": True, "stream": True}
    await client.post(COMPLETIONS, json.dumps({"prompt": texts, **fields}).encode())


async def starts(client: Client) -> None:
    """Start as many answers as a socket may have."""
    opened = await client.socket()
    for number in range(32):
        request = {"messages": [{"role": "user", "content": "Tell me more."}], "ignore_eos": True, "max_tokens": 1900}
        await opened.send(json.dumps({"t": "start", "id": str(number), "request": request, "credit": 1900}))
    await client.hear(opened)


async def sleepers(client: Client) -> None:
    """Start 30 answers of one socket, and give each one credit for a token."""
    opened = await client.socket()
    for number in range(30):
        request = {"messages": [{"role": "user", "content": "word " * 300}], "ignore_eos": True, "max_tokens": 1900}
        await opened.send(json.dumps({"t": "start", "id": str(number), "request": request, "credit": 1}))
    await client.hear(opened)


async def cut_off(client: Client) -> None:
    """Begin an answer, and hang up."""
    async with client.sending(CHAT, chat("word " * 400, max_tokens=1900, stream=True)):
        await asyncio.sleep(random.choice((0, 0.002, 0.02)))
    client.note("sent")


async def given_up(client: Client) -> None:
    """Send a long prompt, and hang up while it is computed."""
    ids = [random.randrange(10, 3000) for _ in range(client.context // 8)]
    payload = json.dumps({"prompt": ids, "max_tokens": 32, "stream": True}).encode()
    async with client.sending(COMPLETIONS, payload):
        await asyncio.sleep(0.3)
    client.note("sent")


async def _ask_without_reading(client: Client, payload: bytes) -> None:
    async with client.sending(CHAT, payload, receive_buffer=4096):
        client.note("asked")
        await asyncio.sleep(3600)
