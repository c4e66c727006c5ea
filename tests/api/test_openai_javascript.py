"""The stock JavaScript client of OpenAI under Node: its checks are in openai_client.test.js."""

import asyncio
import json
from pathlib import Path

from tests.api.serving import make_app, serving, until, with_grammars
from tests.fakes import FakeEngine, Script
from tools.node import run_tests

CHECKS = Path(__file__).with_name("openai_client.test.js")
CALLS = "\n".join(
    f'<tool_call>\n{{"name": "weather", "arguments": {{"city": "{city}"}}}}\n</tool_call>' for city in ("Oslo", "Rome")
)
ANSWER = f"Let me see.\n{CALLS}"  # without tools in the request, calls are text
WRITTEN = f"<think>Two cities: \u732b.</think>\n\n{ANSWER}"
PIECES = [WRITTEN[start : start + 4] for start in range(0, len(WRITTEN), 4)]
EXPECTED = {
    "answer": ANSWER,
    "text": "Let me see.",
    "reasoning": "Two cities: \u732b.",
    "numTokens": len(PIECES),
}


async def step_for_each(engine: FakeEngine, num_requests: int) -> None:
    """Do one step when each of the requests has come, which begins its stream."""
    for count in range(1, num_requests + 1):
        await until(lambda count=count: len(engine.requests) == count)
        engine.step()


async def test_the_javascript_client_finds_nothing_missing():
    settings = {"reasoning_parser": "think", "api_key": ("right",)}
    held = FakeEngine(held=True)
    known = await make_app(FakeEngine(Script(answer=PIECES)), **settings)
    parsing = await make_app(FakeEngine(Script(answer=['{"degrees"', ": 3}"])), api_key=("right",))
    calling = await make_app(FakeEngine(Script(answer=[ANSWER])), api_key=("right",))
    for app in (parsing, calling):
        with_grammars(app)
    async with (
        serving(known) as url,
        serving(parsing) as parsing_url,
        serving(calling) as calling_url,
        serving(await make_app(held, **settings)) as held_url,
    ):
        variables = {
            "QUIRE_URL": url,
            "QUIRE_PARSING_URL": parsing_url,
            "QUIRE_CALLING_URL": calling_url,
            "QUIRE_HELD_URL": held_url,
            "QUIRE_EXPECTED": json.dumps(EXPECTED),
        }
        stepping = asyncio.create_task(step_for_each(held, 2))
        tested = await asyncio.to_thread(run_tests, CHECKS, NO_PROXY="127.0.0.1", **variables)
        assert tested.returncode == 0, tested.stdout
        assert f"# pass {CHECKS.read_text(encoding='utf-8').count(chr(10) + 'test(')}" in tested.stdout
        await stepping
        await until(lambda: len(held.aborted) == 2)
        assert set(held.aborted) == {request.id for request in held.requests}
