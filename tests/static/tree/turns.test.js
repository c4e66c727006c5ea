import assert from "node:assert/strict";
import test from "node:test";
import { turnsOf } from "../../../app/static/tree/turns.js";

const question = (text) => ({ role: "user", text });
const answer = (text, more = {}) => ({ role: "assistant", text, ...more });
const calling = answer("", { tools: [{}] });
const given = { role: "user", text: "", results: [{}] };
/** The places of turns, and whether they have questions. */
const places = (path) => turnsOf(path).map(({ at, end, question: asked }) => [at, end, asked === path[at]]);

test("a turn is a question and its answer", () => {
  assert.deepEqual(turnsOf([]), []);
  const path = [question("1"), answer("1"), question("2")];
  assert.deepEqual(places(path), [[0, 2, true], [2, 3, true]]);
  assert.deepEqual(turnsOf(path)[0].messages, path.slice(0, 2));
});

test("calls of tools and their results are in the turn of the question that led to them", () => {
  const path = [question("1"), calling, given, calling, given, answer("1"), question("2"), answer("2")];
  assert.deepEqual(places(path), [[0, 6, true], [6, 8, true]]);
});

test("results without the calls before them are a question", () => {
  assert.deepEqual(places([given, answer("1"), given, answer("2")]), [[0, 2, true], [2, 4, true]]);
});

test("a question behind calls leaves them without results", () => {
  assert.deepEqual(places([question("1"), calling, question("2"), answer("2")]), [[0, 2, true], [2, 4, true]]);
});

test("answers without their question are a turn without one", () => {
  assert.deepEqual(places([answer("0"), question("1")]), [[0, 1, false], [1, 2, true]]);
});
