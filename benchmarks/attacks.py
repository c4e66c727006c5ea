"""Attacks of one client on a server, as a process of its own at the lowest priority.

`python -m benchmarks.attacks NAME URL CONTEXT`. Prints `ready` when it has begun, `answered` when the server has
answered something, and what it answered altogether (JSON) when its input ends. It comes from 127.0.0.2, so to a server
without keys it is another client than one from 127.0.0.1.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import sys
from collections.abc import Awaitable, Callable

from websockets.exceptions import WebSocketException

import benchmarks.api_attacks  # noqa: F401 - enters its attacks
from benchmarks.attack_client import Client
from benchmarks.attack_table import ATTACKS as ATTACKS
from benchmarks.attack_table import CHAT, COMPLETIONS, LARGEST, attack, body, chat

RETRY_S = 0.05


@attack("does nothing")
async def idle(client: Client) -> None:
    client.note("nothing")
    await asyncio.sleep(3600)


# --- Bodies that cost before they are rejected or admitted -----------------------------------------------------------


@body("a prompt of 4 MB, which is too long")
def prompt_4mb() -> bytes:
    return chat("every good word " * (LARGEST // 16))


@body("4 MB of one letter")
def one_letter() -> bytes:
    return chat("a" * LARGEST)


@body("4 MB of a special token spelled in a message")
def marks() -> bytes:
    return chat("<|end|>" * (LARGEST // 7))


@body("4 MB of token ids", COMPLETIONS)
def token_ids() -> bytes:
    return json.dumps({"prompt": [7] * (LARGEST // 3)}).encode()


@body("4 MB of empty text parts")
def empty_parts() -> bytes:
    return chat([{"type": "text", "text": ""}] * (LARGEST // 30))


@body("4 MB of empty lists in an unknown field")
def empty_lists() -> bytes:
    return b'{"messages":[],"x":[' + b"[]," * (LARGEST // 3 - 20) + b"[]]}"


@body("511 keys, and 690,000 copies of one")
def duplicate_keys() -> bytes:
    keys = ",".join(f'"k{number}":0' for number in range(511))
    copies = ',"k":0' * ((LARGEST - len(keys)) // 6)
    return f"{{{keys}{copies}}}".encode()


@body("4 MB of opening brackets")
def brackets() -> bytes:
    return b"[" * LARGEST


@body("a number of 4 million digits")
def digits() -> bytes:
    return b'{"seed":' + b"9" * (LARGEST - 20) + b"}"


@body("4 MB of escaped lone surrogates")
def surrogates() -> bytes:
    return b'{"messages":[{"role":"user","content":"' + b"\\ud800" * (LARGEST // 6 - 20) + b'"}]}'


@body("1,024 messages")
def messages() -> bytes:
    turns = [{"role": "user" if number % 2 == 0 else "assistant", "content": "a" * 3900} for number in range(1023)]
    return json.dumps({"messages": turns, "max_tokens": 1}).encode()


@attack("300 biases and 16 stop strings of 256 characters", 4)
async def stop_strings(client: Client) -> None:
    stop = ["".join(random.choices("ab ", k=256)) for _ in range(16)]
    await client.post(CHAT, chat(stop=stop, max_tokens=300, logit_bias={str(i): -1 for i in range(300)}))


@attack("the longest prompt that is allowed")
async def longest_prompt(client: Client) -> None:
    ids = [random.randrange(10, 3000) for _ in range(client.context - 64)]
    await client.post(COMPLETIONS, json.dumps({"prompt": ids, "max_tokens": 32, "ignore_eos": True}).encode())


# --- Answers that cost ------------------------------------------------------------------------------------------------


@attack("n = 16 with 20 log-probabilities a token, streamed", 1)
async def logprobs_streamed(client: Client) -> None:
    await client.post(CHAT, chat(n=16, logprobs=True, top_logprobs=20, max_tokens=1900, temperature=1, stream=True))


@attack("n = 16 with 20 log-probabilities a token, not streamed", 1)
async def logprobs_whole(client: Client) -> None:
    await client.post(CHAT, chat(n=16, logprobs=True, top_logprobs=20, max_tokens=1900, temperature=1))


@attack("long prompts, each different, echoed with 20 log-probabilities a token", 4)
async def scored_prompts(client: Client) -> None:
    ids = [random.randrange(10, 3000) for _ in range(min(4096, client.context - 8))]
    fields = {"prompt": ids, "echo": True, "logprobs": 20, "max_tokens": 1, "stream": random.random() < 0.5}
    await client.post(COMPLETIONS, json.dumps(fields).encode())


@attack("log-probabilities, merged, and never read", 8)
async def logprobs_unread(client: Client) -> None:
    options = {"slow_reader": "coalesce"}
    fields = {"logprobs": True, "top_logprobs": 20, "max_tokens": 1900, "temperature": 1}
    _, writer = await client.send(CHAT, chat(n=16, stream=True, stream_options=options, **fields), receive_buffer=4096)
    client.note("asked")
    await asyncio.sleep(3600)
    writer.close()


@attack("n = 16 with 20 log-probabilities a token, not streamed, never read", 8)
async def whole_unread(client: Client) -> None:
    fields = {"logprobs": True, "top_logprobs": 20, "max_tokens": 1900, "temperature": 1}
    _, writer = await client.send(CHAT, chat(n=16, **fields), receive_buffer=4096)
    client.note("asked")
    await asyncio.sleep(3600)
    writer.close()


@attack("n = 16, dropped because its reader is too slow, again and again", 8)
async def dropped(client: Client) -> None:
    opened = await client.socket()
    content = [{"role": "user", "content": "Tell me a story."}]
    request = {"messages": content, "n": 16, "ignore_eos": True, "max_tokens": 1900, "temperature": 1}
    request |= {"stream_options": {"slow_reader": "drop"}}
    await opened.send(json.dumps({"t": "start", "id": "1", "request": request, "credit": 1}))
    await client.hear(opened, only="error")
    await opened.close()


@attack("n = 16 with usage in every chunk", 4)
async def usage_in_chunks(client: Client) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    await client.post(CHAT, chat(n=16, max_tokens=1900, temperature=1, stream=True, stream_options=options))


@attack("n = 16 with penalties and a flat top-p", 1)
async def flat_top_p(client: Client) -> None:
    fields = {"temperature": 2, "top_p": 0.95, "presence_penalty": 1, "frequency_penalty": 1}
    await client.post(CHAT, chat(n=16, max_tokens=1900, repetition_penalty=1.2, stream=True, **fields))


@attack("n = 16 with 300 biases and min_tokens", 1)
async def biases(client: Client) -> None:
    bias = {str(token_id): 1 for token_id in range(10, 310)}
    fields = {"logit_bias": bias, "min_tokens": 1000, "stop_token_ids": list(range(5, 8)), "temperature": 1}
    await client.post(CHAT, chat(n=16, max_tokens=1900, stream=True, **fields))


@attack("beams", 1)
async def beams(client: Client) -> None:
    await client.post(CHAT, chat(use_beam_search=True, n=8, temperature=0, max_tokens=1000))


@attack("64 answers at once", 64)
async def many_answers(client: Client) -> None:
    await client.post(CHAT, chat(max_tokens=1900, stream=True))


@attack("1,000 starts over 32 sockets", 32)
async def starts(client: Client) -> None:
    opened = await client.socket()
    for number in range(32):
        request = {"messages": [{"role": "user", "content": "Tell me more."}], "ignore_eos": True, "max_tokens": 1900}
        await opened.send(json.dumps({"t": "start", "id": str(number), "request": request, "credit": 1900}))
    await client.hear(opened)


@attack("300 streams that are never read", 10)
async def sleepers(client: Client) -> None:
    opened = await client.socket()
    for number in range(30):
        request = {"messages": [{"role": "user", "content": "word " * 300}], "ignore_eos": True, "max_tokens": 1900}
        await opened.send(json.dumps({"t": "start", "id": str(number), "request": request, "credit": 1}))
    await client.hear(opened)


@attack("answers begun and cut off at once", 8)
async def cut_off(client: Client) -> None:
    _, writer = await client.send(CHAT, chat("word " * 400, max_tokens=1900, stream=True))
    await asyncio.sleep(random.choice((0, 0.002, 0.02)))
    writer.transport.abort()
    client.note("sent")


@attack("long prompts given up half-way", 8)
async def given_up(client: Client) -> None:
    ids = [random.randrange(10, 3000) for _ in range(client.context // 8)]
    _, writer = await client.send(COMPLETIONS, json.dumps({"prompt": ids, "max_tokens": 32, "stream": True}).encode())
    await asyncio.sleep(0.3)
    writer.transport.abort()
    client.note("sent")


# --- Connections ------------------------------------------------------------------------------------------------------


@attack("4 MB frames before hello")
async def before_hello(client: Client) -> None:
    opened = await client.socket(greet=False)
    await opened.send('{"t":"hello","protocol":"quire.v1","x":[' + "[]," * (LARGEST // 3 - 40) + "[]]}")
    await client.hear(opened, only="welcome")
    await opened.close()


@attack("starts of 4 MB over one socket each")
async def large_starts(client: Client) -> None:
    opened = await client.socket()
    content = "every good word " * (LARGEST // 16 - 64)
    request = {"messages": [{"role": "user", "content": content}]}
    for number in range(20):
        await opened.send(json.dumps({"t": "start", "id": str(number), "request": request}))
        await client.hear(opened, only="error")


@attack("as many frames as the protocol allows", 8)
async def frames(client: Client) -> None:
    opened = await client.socket()
    hearing = asyncio.create_task(client.hear(opened))
    try:
        while True:
            for _ in range(10):
                await opened.send(json.dumps({"t": "credit", "id": "nobody", "upto": [1]}))
            await opened.ping()
            client.note("pinged")
            await asyncio.sleep(0.1)
    finally:
        hearing.cancel()


@attack("connections opened and dropped", 8)
async def churn(client: Client) -> None:
    _, writer = await client.open()
    writer.write(b"GET /livez HTTP/1.1\r\nhost: x\r\n")
    writer.transport.abort()
    client.note("opened")
    await asyncio.sleep(0.001)


@attack("the metrics, over 64 connections", 64)
async def metrics(client: Client) -> None:
    await client.get("/metrics", 100)


@attack("the page's largest file, again and again", 4)
async def page(client: Client) -> None:
    await client.get("/static/conversation.css", 100)


@attack("rejected for a wrong path and method", 4)
async def wrong_paths(client: Client) -> None:
    await client.get("/v1/nothing", 100)


async def repeat(client: Client, run: Callable[[Client], Awaitable[None]]) -> None:
    """Attack again and again, whatever the server makes of it."""
    while True:
        try:
            await run(client)
        except (OSError, EOFError, WebSocketException, asyncio.LimitOverrunError) as error:
            client.note(type(error).__name__)
            await asyncio.sleep(RETRY_S)


async def tell_answered(client: Client) -> None:
    """Say when the server has answered something."""
    await client.is_answered.wait()
    print("answered", flush=True)


async def main(name: str, url: str, context: int) -> None:
    """Attack until the input ends."""
    client, chosen = Client(url, context), ATTACKS[name]
    workers = [asyncio.create_task(repeat(client, chosen.run)) for _ in range(chosen.num_workers)]
    print("ready", flush=True)
    telling = asyncio.create_task(tell_answered(client))
    await asyncio.to_thread(sys.stdin.read)
    telling.cancel()
    for worker in workers:
        worker.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.wait(workers)
    print(json.dumps(client.answers), flush=True)


if __name__ == "__main__":
    os.nice(19)
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
