"""Codex over Responses: every request is answered, and the conversation stays in the cache."""

import pytest

from tests.agents.agent_server import BLOCK_SIZE, check_cached, played


async def test_a_session_of_codex_is_answered_and_each_prompt_finds_the_one_before_in_the_cache():
    check_cached(await played("codex.json"))


@pytest.mark.long
async def test_a_session_over_a_websocket_finds_what_was_computed_before_the_question():
    """The first prompt ends with the beginning of an answer, behind which the question does not come."""
    prepared, first, *others = await played("codex_websocket.json")
    assert first.cached_tokens > prepared.prompt_tokens - 2 * BLOCK_SIZE
    check_cached([first, *others])
