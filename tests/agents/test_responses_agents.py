"""Codex over Responses: every request is answered, and the conversation stays in the cache."""

from tests.agents.agent_server import check_cached, played


async def test_a_session_of_codex_is_answered_and_each_prompt_finds_the_one_before_in_the_cache():
    check_cached(await played("codex.json"))
