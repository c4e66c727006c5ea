import assert from "node:assert/strict";
import test from "node:test";
import { topOf } from "../../../app/static/live/timeline.js";

test("the scale reaches the longest step", () => {
  assert.equal(topOf([1, 1, 18], false), 20);
  assert.equal(topOf([], false), 1);
});

test("from near the scale is of the usual steps, also where they take no time", () => {
  assert.equal(topOf([0.3, 0.3, 18, 0.3], true), 2);
  assert.equal(topOf([12, 14, 18], true), 20);
  assert.equal(topOf([0, 0, 18], true), 1);
  assert.equal(topOf([], true), 1);
});
