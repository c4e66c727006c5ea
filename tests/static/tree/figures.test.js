import assert from "node:assert/strict";
import test from "node:test";
import { Stopwatch } from "../../../app/static/tree/figures.js";

test("the tokens of an answer that is continued count, but not as fast ones", () => {
  const watch = new Stopwatch(0, 100);
  assert.equal(watch.read(0).tokens, 100);
  watch.add(1, 500);
  watch.add(9, 1500);
  assert.deepEqual(watch.read(1500), { tokens: 110, firstTokenMs: 500, waitedMs: 500, rate: 9 });
});
