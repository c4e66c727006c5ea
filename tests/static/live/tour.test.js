import assert from "node:assert/strict";
import test from "node:test";
import { answerTokens, longQuestion, stopsFor } from "../../../app/static/live/tour.js";
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

test("a long question is read in several steps where the pool has room for it, and never fills the pool", () => {
  const words = (count, context) => longQuestion(state(count, null), context).split(" ").length;
  assert.ok(words(10_000, 8192) > 2 * 512);
  assert.ok(words(48, 2048) < 48 * 16 / 3);
  assert.ok(words(10_000, 512) < 512 / 3);
});

test("each word that a stranger is to learn is in a stop", () => {
  const texts = stopsFor(state(2000, null), 2048).map(({ text }) => text).join(" ");
  for (const word of ["block", "shared", "copy", "chunks", "preemption", "↺", "0/40"]) assert.ok(texts.includes(word), word);
});

const fullOf = (numBlocks, ms = null) => stopsFor(state(numBlocks, ms), 2048).find(({ title }) => title === "A full pool");

test("only a pool that is small enough is filled; for others there is a recording", () => {
  assert.ok(fullOf(48).play);
  assert.equal(fullOf(49).play, undefined);
  assert.match(fullOf(2000).text, /2,000 blocks are too many to fill: you see a recording/);
  for (const stop of stopsFor(state(2000, null), 2048)) assert.ok(stop.play || stop.isRecorded, stop.title);
});

/** Plays a stop with answers that have ended at once. Returns the requests. */
async function play(stop) {
  const requests = [];
  const answer = { reaches: async () => {}, pauses: async () => {}, read: () => {} };
  await stop.play({ start: (request) => requests.push(request) && answer, all: async () => {}, rest: async () => {}, leave: () => {}, lasts: (_, again) => again(1) });
  return requests;
}

test("eight answers fill a small pool, on a fast engine several times", async () => {
  for (const [ms, times] of [[30, 1], [0.5, 4], [null, 4]]) {
    const requests = await play(fullOf(48, ms));
    assert.equal(requests.length, 8);
    const tokens = requests.reduce((sum, { max_tokens }) => sum + max_tokens, 0);
    assert.ok(tokens >= times * 48 * 16, `${tokens} tokens`);
    // One that comes alone finds room.
    for (const { max_tokens } of requests) assert.ok(max_tokens <= 24 * 16);
  }
});

test("every stop asks for little, after all others, and for no more than eight answers", async () => {
  for (const stop of stopsFor(state(48, null), 2048).filter((each) => each.play)) {
    const requests = await play(stop);
    assert.ok(requests.length >= 1 && requests.length <= 8, stop.title);
    const most = { "A full pool": 24 * 16, "A slow reader": 32 + 192 + 64 }[stop.title] ?? 2 * 96;
    for (const { max_tokens, priority } of requests) assert.deepEqual([max_tokens <= most, priority], [true, 100], stop.title);
  }
});

test("an answer that is read slowly is longer than what a server lets wait, also on a slow engine", async () => {
  for (const ms of [200, 1, null]) {
    const [{ max_tokens }] = await play(stopsFor(state(2000, ms), 8192).find(({ title }) => title === "A slow reader"));
    assert.ok(max_tokens > 32 + 192);
  }
});

test("a long question that is asked again begins differently, so that it is not found in the cache", async () => {
  const stop = stopsFor(state(2000, null), 2048).find(({ title }) => title === "A long question");
  const asked = [];
  const answer = { reaches: async () => {} };
  const twice = async (_, again) => [await again(1), await again(2)];
  await stop.play({ start: ({ messages }) => asked.push(messages[0].content) && answer, all: async () => {}, leave: async () => {}, lasts: twice });
  assert.notEqual(asked[1].slice(0, 16), asked[3].slice(0, 16));
  assert.equal(asked[1].slice(16), asked[3].slice(16));
});

test("requests that share blocks begin with the same text in one message, since there are models that read only the last", async () => {
  for (const title of ["Shared blocks", "Copies", "The second turn"]) {
    const requests = await play(stopsFor(state(2000, null), 2048).find((stop) => stop.title === title));
    const texts = requests.map(({ messages: [{ role, content }, ...others] }) => (role === "user" && !others.length ? content : ""));
    for (const text of texts) assert.equal(text.slice(0, 500), texts[0].slice(0, 500));
    assert.ok(texts[0].length > 500, title);
  }
});
