"""A server whose context has room for the sessions of agents, and the checks of what came back."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise

from tests.agents.play import Answer, load, play
from tests.agents.write_transcripts import FOLDER
from tests.checkpoints import real_size
from tests.regressions.running_server import run_server
from tests.text.templates import WHOLE_CHAT

BLOCK_SIZE, NUM_BLOCKS = 16, 6144
ANSWER_TOKENS = 4  # the model, which has random weights, never ends an answer


@asynccontextmanager
async def agent_server() -> AsyncIterator[str]:
    """Serve a model of one layer with a context of 98,304 tokens; yields the server's URL."""
    folder = real_size("long")
    settings = {"load_format": "dummy", "chat_template": str(WHOLE_CHAT), "num_kv_blocks": NUM_BLOCKS}
    async with run_server(folder=folder, max_model_len=BLOCK_SIZE * NUM_BLOCKS, **settings) as server:
        yield server.url


async def played(name: str) -> list[Answer]:
    """Send a transcript to a new server, and check that every request is answered, and what is ignored of it."""
    transcript = load(FOLDER / name)
    async with agent_server() as url:
        answers = await play(transcript, url, max_tokens=ANSWER_TOKENS)
    assert [(answer.status, answer.error) for answer in answers] == [(200, None)] * len(transcript["requests"])
    assert all(set(transcript["ignored"]) <= set(answer.ignored or ()) for answer in answers)
    return answers


def check_cached(answers: Sequence[Answer]) -> None:
    """Check that each prompt finds the one before in the cache, but for a block that is not full."""
    conversation = [answer for answer in answers if not answer.is_alone]
    missed = [
        (number, after.cached_tokens, before.prompt_tokens)
        for number, (before, after) in enumerate(pairwise(conversation), 2)
        if not before.prompt_tokens - BLOCK_SIZE < after.cached_tokens <= after.prompt_tokens
    ]
    assert missed == [], "number of the request, cached tokens, tokens of the prompt before"
