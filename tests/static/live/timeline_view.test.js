import assert from "node:assert/strict";
import test from "node:test";
import { untilRead } from "../../../app/static/live/timeline_view.js";

/** So many steps, of which those at some times read. */
const stepsOf = (count, reading) => Array.from({ length: count }, (_, at) => ({
  at, ms: 1, isOver: false, shares: [{ n: 1, hue: 1, prompt: reading.includes(at) ? 8 : 0, decode: 1, accepted: 0 }],
}));

test("a held timeline ends a little after the last step that reads, however long the answer is", () => {
  const held = untilRead(stepsOf(500, [30, 200]), 10);
  assert.deepEqual([held[0].at, held.at(-1).at], [11, 224]);
});

test("a held timeline without a step that reads has all since its time", () => {
  assert.equal(untilRead(stepsOf(50, [3]), 10).length, 39);
});
