import assert from "node:assert/strict";
import test from "node:test";
import { answerTokens, stopsFor } from "../../../app/static/live/tour.js";
import { stateOf } from "../engine/messages.js";

const state = (count, ms) => stateOf(count, { figures: { between_tokens_ms: ms === null ? null : { p50: ms, p95: ms, p99: ms } } });

test("an answer of the tour lasts some seconds, and leaves room for others", () => {
  const cases = [
    [state(10_000, 20), 8192, 200],
    [state(10_000, null), 8192, 96],
    [state(10_000, 200), 8192, 96],
    [state(10_000, 0.5), 2048, 410],
    [state(200, 0.5), 32_768, 320],
    [state(48, 0.5), 2048, 96],
  ];
  for (const [latest, context, tokens] of cases) assert.equal(answerTokens(latest, context), tokens);
});

test("only a pool that is small enough is filled", () => {
  const full = (numBlocks) => stopsFor(numBlocks, 96).find(({ title }) => title === "A full pool");
  assert.ok(full(48).play);
  assert.equal(full(49).play, undefined);
  assert.match(full(2000).text, /2,000 blocks are too many/);
});

/** Plays a stop with answers that have ended at once. Returns the requests. */
async function play(stop) {
  const requests = [];
  const answer = { reaches: async () => {}, pauses: async () => {}, read: () => {} };
  await stop.play({ start: (request) => requests.push(request) && answer, all: async () => {}, rest: async () => {}, leave: () => {} });
  return requests;
}

test("every stop asks for little, after all others, and for no more than eight answers", async () => {
  for (const stop of stopsFor(48, 96).filter((each) => each.play)) {
    const requests = await play(stop);
    assert.ok(requests.length >= 1 && requests.length <= 8, stop.title);
    for (const { max_tokens, priority } of requests) assert.deepEqual([max_tokens <= 2 * 96, priority], [true, 100], stop.title);
  }
});
