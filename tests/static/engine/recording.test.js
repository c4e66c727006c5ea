import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import test, { afterEach, beforeEach, mock } from "node:test";
import { Picture } from "../../../app/static/engine/picture.js";
import { Decoder } from "../../../app/static/engine/decoder.js";
import { messagesOf, RECORDED, Recording, RecordingMissing } from "../../../app/static/engine/recording.js";
import { message, stateOf } from "./messages.js";

const FILE = new URL("../../../app/static/engine/full_pool.bin", import.meta.url);

/** A file with messages. @param {ArrayBuffer[]} messages @returns {ArrayBuffer} */
function packed(messages) {
  const parts = messages.flatMap((buffer) => [new Uint8Array(Uint32Array.of(buffer.byteLength).buffer), new Uint8Array(buffer)]);
  return Uint8Array.from(parts.flatMap((part) => [...part])).buffer;
}

let now = 0;
beforeEach(() => {
  now = 0;
  mock.timers.enable({ apis: ["setTimeout"] });
  mock.method(performance, "now", () => now);
});
afterEach(() => {
  mock.timers.reset();
  mock.restoreAll();
});

const settle = () => new Promise((resolve) => setImmediate(resolve));
const pass = async (ms) => {
  now += ms;
  mock.timers.tick(ms);
  await settle();
};

/** Plays messages at these seconds. Returns the times of the shown ones. */
async function play(...seconds) {
  const messages = seconds.map((time, number) => message(number && 1, number, stateOf(4, { time }), number ? [] : [4, 0, 0]));
  mock.method(globalThis, "fetch", async () => ({ ok: true, arrayBuffer: async () => packed(messages) }));
  const recording = new Recording();
  const seen = [];
  let isOver = false;
  recording.play(() => seen.push(recording.picture.time)).then(() => (isOver = true));
  await settle();
  return { recording, seen, isOver: () => isOver };
}

test("the recording is of a server whose pool gets full, and says of which one", () => {
  const decoder = new Decoder();
  const picture = new Picture();
  const states = new Set();
  let copies = 0;
  const messages = messagesOf(new Uint8Array(readFileSync(FILE)).buffer);
  for (const { ms, buffer } of messages) {
    decoder.receive(buffer);
    picture.receive(decoder, ms);
    copies += picture.flashesAt(ms).length;
    for (const { state } of picture.groups.values()) states.add(state);
  }
  assert.ok(copies > 0);
  for (const state of ["running", "preempted", "swapped"]) assert.ok(states.has(state), state);
  assert.equal(picture.groups.size, 0);
  assert.equal(picture.latest.figures.model, "smollm2");
  assert.match(RECORDED, new RegExp(`SmolLM2 .* ${picture.states.length} blocks`));
  assert.ok(messages.at(-1).ms < 15_000);
});

test("messages are shown as they came, and the last one for a moment", async () => {
  const { seen, isOver } = await play(5, 6, 8);
  await pass(0);
  assert.deepEqual(seen, [5]);
  await pass(999);
  assert.deepEqual(seen, [5]);
  await pass(1);
  assert.deepEqual(seen, [5, 6]);
  await pass(2000);
  assert.deepEqual([seen, isOver()], [[5, 6, 8], false]);
  await pass(2000);
  assert.ok(isOver());
});

test("one that is closed is over at once", async () => {
  const { recording, seen, isOver } = await play(5, 6);
  await pass(0);
  recording.close();
  await settle();
  assert.ok(isOver());
  await pass(5000);
  assert.deepEqual(seen, [5]);
});

test("one that cannot be loaded says so", async () => {
  mock.method(globalThis, "fetch", async () => ({ ok: false }));
  await assert.rejects(new Recording().play(() => {}), RecordingMissing);
  mock.method(globalThis, "fetch", () => Promise.reject(new TypeError("away")));
  await assert.rejects(new Recording().play(() => {}), RecordingMissing);
});
