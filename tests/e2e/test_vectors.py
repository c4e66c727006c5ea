"""The page's protocol follows the scenarios of the Python client (tests/client/test_protocol.py)."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page

from tests.e2e.browsing import new_page
from tests.e2e.scripted import ScriptedServer

pytestmark = pytest.mark.asyncio(loop_scope="session")

VECTORS = Path(__file__).parents[1] / "vectors" / "quire_v1.json"
SCENARIOS = {one["name"]: one for one in json.loads(VECTORS.read_text(encoding="utf-8"))["scenarios"]}

# Plays a scenario; returns the frames sent in each step, the outcome of the streams, and whether the server drains.
PLAY = """async (steps) => {
  const { Protocol } = await import("/static/stream/protocol.js");
  const { Stops } = await import("/static/stream/stops.js");
  let sent = [];
  let now = 0;
  const connect = () => new Protocol((frame) => sent.push(structuredClone(frame)));
  let protocol = connect();
  const streams = {};
  const asked = {};
  const refused = new Set();
  const stops = new Stops();
  const heard = {};  // the text of each choice, its stop reason, and the error, by stream
  const hear = (stream, frame) => {
    if (frame.t === "delta") heard[stream.id].texts[frame.i] += frame.x;
    if (frame.stop_reason !== undefined) {
      heard[stream.id].stop ??= heard[stream.id].texts.map(() => null);
      heard[stream.id].stop[frame.i] = frame.stop_reason;
    }
    if (frame.t === "error" && frame.code === "rate_limit_exceeded" && stream.position) refused.add(stream.id);
    else if (frame.t === "error") heard[stream.id].error = frame.code;
    if (stream.isOver) stops.settle(stream.id);
  };
  const start = ({ id, request, key }) => {
    asked[id] = { request, key };
    streams[id] = protocol.start(id, request, key);
    heard[id] = { texts: Array(request.n ?? 1).fill("") };
  };
  const lose = () => {
    protocol.close();
    protocol = connect();
  };
  // As writer.js and link.js do.
  const cancel = (id) => {
    const isOpen = protocol.cancel(id);
    if (isOpen && asked[id].key) stops.add(id, { position: streams[id].position, request: asked[id].request });
  };
  const startAgain = (id) => start({ id, ...asked[id] });
  const resume = () => {
    stops.tellAll({ start: startAgain, cancel: (id) => protocol.cancel(id) }, null);
    for (const [id, { state, position, isAccepted }] of Object.entries(streams)) {
      if (state !== "disconnected" && !refused.delete(id)) continue;
      if (position) streams[id] = protocol.resume(id, position);
      else if (!isAccepted && asked[id].key) startAgain(id);
    }
  };
  const receive = (frame) => {
    const stream = protocol.receive(frame);
    if (stream) hear(stream, frame);
  };
  const play = (step) => {
    if (step.server) receive(step.server);
    else if (step.closed) protocol.close();
    else if (step.client === "hello") protocol.hello(step.key);
    else if (step.client === "start") start(step);
    else if (step.client === "cancel") cancel(step.id);
    else if (step.client === "lose") lose();
    else if (step.client === "resume") resume();
    else if (step.client === "read") protocol.show(now);
    else if (step.client === "wait") now += step.ms;
    else throw new Error(`no such step: ${step.client}`);
  };
  const sends = steps.map((step) => {
    sent = [];
    play(step);
    return sent;
  });
  const outcome = ({ id, finishReasons, state, progress }) => ({
    ...heard[id],
    finish: heard[id].texts.map((_, i) => finishReasons[i] ?? null),
    state,
    ...(progress && { progress: [progress.phase, progress.done, progress.total] }),
  });
  const ends = Object.entries(streams).map(([id, stream]) => [id, outcome(stream)]);
  return { sends, streams: Object.fromEntries(ends), draining: protocol.isDraining };
}"""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def page(browser: Browser) -> AsyncIterator[Page]:
    """One open page for all scenarios; they leave nothing on it."""
    async with ScriptedServer().running() as server:
        context, page = await new_page(browser)
        await page.goto(server.url)
        yield page
        await context.close()


@pytest.mark.parametrize("name", SCENARIOS)
async def test_every_scenario_has_its_frames_and_outcome(page: Page, name: str) -> None:
    scenario: dict[str, Any] = SCENARIOS[name]
    played = await page.evaluate(PLAY, scenario["steps"])
    for number, step in enumerate(scenario["steps"]):
        assert played["sends"][number] == step.get("sends", []), f"step {number}: {step}"
    assert played["streams"] == scenario["streams"]
    assert played["draining"] == scenario.get("draining", False)
