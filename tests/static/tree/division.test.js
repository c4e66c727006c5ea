import assert from "node:assert/strict";
import test from "node:test";
import { divide } from "../../../app/static/tree/division.js";

const question = (text, more = {}) => ({ role: "user", text, ...more });
const answer = (text, more = {}) => ({ role: "assistant", text, state: "done", ...more });
/** Turns whose questions and answers cost 1 each. */
const turns = (count) => Array.from({ length: count }, () => [question("q"), answer("a")]).flat();
const costOf = ({ text }) => text.length;

test("the newest turns that fit the room are kept", () => {
  assert.deepEqual(divide(turns(5), 4, costOf), { numTurns: 3, from: 6, end: 10 });
  assert.deepEqual(divide(turns(5), 5, costOf), { numTurns: 3, from: 6, end: 10 });
});

test("the oldest turn is left out, however much room there is", () => {
  assert.deepEqual(divide(turns(3), 1000, costOf), { numTurns: 1, from: 2, end: 6 });
});

test("without room all turns are left out, but not a question without an answer", () => {
  const path = [...turns(2), question("open"), answer("", { state: "failed" })];
  assert.deepEqual(divide(path, 0, costOf), { numTurns: 2, from: 4, end: 4 });
});

test("without an answered turn there is nothing to leave out", () => {
  assert.equal(divide([], 10, costOf).numTurns, 0);
  assert.equal(divide([question("q")], 10, costOf).numTurns, 0);
});

test("turns that the newest cut has kept are left out with the next ones", () => {
  const path = turns(4);
  // After the second turn: it alone is still sent.
  path[3].keeps = 2;
  assert.deepEqual(divide(path, 2, costOf), { numTurns: 2, from: 6, end: 8 });
});

test("turns before a cut are not counted again", () => {
  const path = turns(4);
  path[3].keeps = 0;
  assert.deepEqual(divide(path, 2, costOf), { numTurns: 1, from: 6, end: 8 });
});

test("calls of tools and their results are parts of their turn", () => {
  const called = [question("q"), answer("", { tools: [{}] }), question("", { results: [{}] }), answer("a")];
  assert.deepEqual(divide([...called, ...turns(1)], 2, costOf), { numTurns: 1, from: 4, end: 6 });
  assert.deepEqual(divide([...turns(1), ...called], 2, costOf), { numTurns: 1, from: 2, end: 6 });
  assert.deepEqual(divide([...turns(1), ...called], 0, costOf), { numTurns: 2, from: 6, end: 6 });
});
