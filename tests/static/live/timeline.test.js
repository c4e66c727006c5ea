import assert from "node:assert/strict";
import test from "node:test";
import { Timeline, topOf } from "../../../app/static/live/timeline.js";

test("the scale reaches the longest step, unless that is much longer than nearly all", () => {
  assert.equal(topOf([12, 14, 18], false), 20);
  assert.equal(topOf([18], false), 20);
  assert.equal(topOf([], false), 1);
  const chunks = [...Array(90).fill(30), ...Array(10).fill(290)];
  assert.equal(topOf(chunks, false), 500);
  assert.equal(topOf([...chunks, 5000], false), 500);
  assert.equal(topOf([30, 31, 5000], false), 50);
});

test("from near the scale is of the usual steps, also where they take no time", () => {
  assert.equal(topOf([0.3, 0.3, 1.4, 18, 0.3], true), 2);
  assert.equal(topOf([12, 14, 18], true), 20);
  assert.equal(topOf([0, 0, 18], true), 1);
  assert.equal(topOf([], true), 1);
});

/** Paint steps of so many milliseconds, 100 px high: the texts, and where; the columns; how many arrows. */
function painted(times, targetMs = 0) {
  const [texts, columns] = [[], []];
  let numPaths = 0;
  const context = new Proxy(
    {
      fillText: (text, x, y) => texts.push([text, y]),
      fillRect: (x, y, width, height) => columns.push(height),
      fill: () => numPaths++,
      measureText: () => ({ width: 20 }),
    },
    { get: (own, name) => own[name] ?? (() => {}), set: () => true },
  );
  const timeline = new Timeline(/** @type {any} */ ({ getContext: () => context }));
  timeline.fit({ width: 400, height: 100 }, 1);
  const steps = times.map((ms) => /** @type {any} */ ({ ms, shares: [] }));
  timeline.paint(steps, targetMs, /** @type {any} */ ({}), -1, false);
  return { texts, columns, numArrows: numPaths };
}

/** The names of the lines, and where they are written, for one step. */
const namesFor = (ms, targetMs) => painted([ms], targetMs).texts;

test("one long step leaves the others as high as without it, and has an arrow with its time", () => {
  const usual = Array(30).fill(40);
  const { columns } = painted(usual);
  const beside = painted([...usual, 5000, ...usual]);
  assert.deepEqual(beside.columns.toSpliced(30, 1), [...columns, ...columns].slice(0, beside.columns.length - 1));
  assert.equal(beside.numArrows, 1);
  assert.deepEqual(beside.texts.map(([text]) => text), ["5.0 s", "50 ms"]);
  assert.equal(painted(usual).numArrows, 0);
});

test("of long steps side by side each has an arrow, and the first one its time", () => {
  const { texts, numArrows } = painted([...Array(40).fill(40), 3000, 4000, 40]);
  assert.equal(numArrows, 2);
  assert.deepEqual(texts.map(([text]) => text), ["3.0 s", "50 ms"]);
});

test("a timeline without steps has no scale", () => {
  assert.deepEqual(painted([]).texts, []);
});

test("a scale of seconds says so", () => {
  assert.deepEqual(namesFor(400, 0).map(([name]) => name), ["500 ms"]);
  assert.deepEqual(namesFor(1900, 0).map(([name]) => name), ["2 s"]);
});

test("the name of a target far below the longest step is in sight", () => {
  const [, [name, y]] = namesFor(4000, 50);
  assert.equal(name, "target");
  assert.ok(y <= 97, `${y}`);
  assert.ok(namesFor(90, 50)[1][1] < 65);
});
