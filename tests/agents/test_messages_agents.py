"""Claude Code over Messages: every request is answered, and the conversation stays in the cache."""

from copy import deepcopy

from tests.agents.agent_server import ANSWER_TOKENS, BLOCK_SIZE, agent_server, check_cached, played
from tests.agents.play import load, play
from tests.agents.write_transcripts import FOLDER


async def test_a_session_of_claude_code_is_answered_and_each_prompt_finds_the_one_before_in_the_cache():
    check_cached(await played("claude_code.json"))


async def test_two_sessions_share_their_beginning_whatever_stands_in_their_billing_lines():
    first = load(FOLDER / "claude_code.json")
    first["requests"] = first["requests"][:1]
    second = deepcopy(first)
    line = second["body"]["system"][0]
    line["text"] = line["text"].replace("cch=00000", "cch=a1b2c")
    second["body"]["metadata"] = {"user_id": "{}"}
    async with agent_server() as url:
        [one] = await play(first, url, max_tokens=ANSWER_TOKENS)
        [other] = await play(second, url, max_tokens=ANSWER_TOKENS)
    assert one.cached_tokens == 0 and other.error is None
    assert other.prompt_tokens == one.prompt_tokens <= other.cached_tokens + BLOCK_SIZE
