import assert from "node:assert/strict";
import test from "node:test";
import { formatDuration, Stopwatch } from "../../../app/static/tree/figures.js";

test("the tokens of an answer that is continued count, but not as fast ones", () => {
  const watch = new Stopwatch(0, 100);
  assert.equal(watch.read(0).tokens, 100);
  watch.add(1, 500);
  watch.add(9, 1500);
  assert.deepEqual(watch.read(1500), { tokens: 110, firstTokenMs: 500, waitedMs: 500, rate: 9 });
});

test("the time in which nothing could come is none of the answer's", () => {
  const watch = new Stopwatch(0);
  watch.pause(10);
  watch.add(1, 1000);
  watch.add(10, 2000);
  watch.pause(2000);
  watch.pause(3000);
  assert.equal(watch.read(60_000).rate, 10);
  watch.add(10, 62_000);
  assert.equal(watch.read(62_000).rate, 20);
  watch.add(10, 63_000);
  assert.equal(watch.read(63_000).rate, 15);
});

test("a duration has two significant digits, also one of less than a millisecond", () => {
  const told = { 0: "0.00 ms", 0.08: "0.08 ms", 0.141: "0.14 ms", 1: "1.0 ms", 4.25: "4.3 ms", 10: "10 ms", 42.4: "42 ms", 314: "0.31 s", 4249: "4.2 s" };
  for (const [ms, text] of Object.entries(told)) assert.equal(formatDuration(Number(ms)), text);
});
