import assert from "node:assert/strict";
import test from "node:test";
import { Timeline, topOf } from "../../../app/static/live/timeline.js";

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

/** The names of the lines of a timeline 100 px high, and where they are written, for a step of so many milliseconds. */
function namesFor(ms, targetMs) {
  const names = [];
  const context = new Proxy(
    { fillText: (name, x, y) => names.push([name, y]), measureText: () => ({ width: 40 }) },
    { get: (own, name) => own[name] ?? (() => {}), set: () => true },
  );
  const timeline = new Timeline(/** @type {any} */ ({ getContext: () => context }));
  timeline.fit({ width: 200, height: 100 }, 1);
  const step = /** @type {any} */ ({ ms, shares: [] });
  timeline.paint([step], targetMs, /** @type {any} */ ({}), -1, false);
  return names;
}

test("a scale of seconds says so", () => {
  assert.deepEqual(namesFor(400, 0).map(([name]) => name), ["500 ms"]);
  assert.deepEqual(namesFor(1900, 0).map(([name]) => name), ["2 s"]);
});

test("the name of a target far below the longest step is in sight", () => {
  const [, [name, y]] = namesFor(4000, 50);
  assert.equal(name, "target");
  assert.ok(y <= 97, `${y}`);
  assert.ok(namesFor(90, 50)[1][1] < 60);
});
