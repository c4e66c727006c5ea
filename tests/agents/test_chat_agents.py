"""opencode and Cline over the chat route: every request is answered, and the conversation stays in the cache."""

import pytest

from tests.agents.agent_server import check_cached, played
from tests.cases import long


@pytest.mark.parametrize("name", ["opencode.json", long("cline.json")])
async def test_a_session_is_answered_and_each_prompt_finds_the_one_before_in_the_cache(name):
    check_cached(await played(name))
