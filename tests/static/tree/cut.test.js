import assert from "node:assert/strict";
import test from "node:test";
import { tokensOf } from "../../../app/static/dock/context_meter.js";
import { cutInForce, cutsOf, sentOf, summarizedOf } from "../../../app/static/tree/cut.js";
import { divide } from "../../../app/static/tree/division.js";

const turn = (name) => [
  { role: "user", text: `Q${name}` },
  { role: "assistant", text: `A${name}`, state: "done" },
];
const turns = (...names) => names.flatMap(turn);
const summary = (keeps, answer = {}) => [
  { role: "user", text: "Summarize", keeps },
  { role: "assistant", text: "Short", state: "done", ...answer },
];
const texts = (path) => path.map(({ text }) => text).join(" ");

function dropped(path, keeps, more = {}) {
  Object.assign(path.at(-1), { keeps, ...more });
  return path;
}

test("without a cut the whole branch is sent", () => {
  assert.equal(texts(sentOf([...turns(1, 2), { role: "user", text: "Q3" }])), "Q1 A1 Q2 A2 Q3");
  assert.deepEqual(sentOf([]), []);
});

test("dropped turns are sent again when the cut is undone, and a branch from before it has none", () => {
  const path = [...dropped(turns(1, 2, 3), 2), ...turns(4)];
  assert.equal(texts(sentOf(path)), "Q3 A3 Q4 A4");
  assert.equal(texts(sentOf(path.slice(0, 5))), "Q1 A1 Q2 A2 Q3");
  path[5].isUndone = true;
  assert.equal(texts(sentOf(path)), "Q1 A1 Q2 A2 Q3 A3 Q4 A4");
  assert.equal(texts(sentOf([...dropped(turns(1, 2), 0), ...turns(3)])), "Q3 A3");
});

test("a summary is sent in the place of what it summarizes", () => {
  const path = [...turns(1, 2, 3), ...summary(3), ...turns(4)];
  assert.equal(texts(sentOf(path)), "Summarize Short Q3 A3 Q4 A4");
  path[6].isUndone = true;
  assert.equal(texts(sentOf(path)), "Q1 A1 Q2 A2 Q3 A3 Q4 A4");
});

test("the request for a summary, or for the rest of it, has the older turns only", () => {
  assert.equal(texts(summarizedOf([...turns(1, 2, 3), ...summary(3).slice(0, 1)])), "Q1 A1 Q2 A2 Summarize");
  assert.equal(texts(summarizedOf([...turns(1, 2, 3), ...summary(3, { state: "stopped" })])), "Q1 A1 Q2 A2 Summarize Short");
});

test("a summary that failed, was stopped or is empty stands for nothing and is not sent", () => {
  for (const answer of [{ state: "failed" }, { state: "stopped" }, { state: "interrupted" }, { state: "streaming" }, { text: "" }]) {
    const path = [...turns(1, 2), ...summary(3, answer), ...turns(3)];
    assert.equal(texts(sentOf(path)), "Q1 A1 Q2 A2 Q3 A3");
    assert.deepEqual(cutsOf(path), []);
  }
});

test("a later cut replaces an earlier one, and its undoing restores it", () => {
  const path = [...dropped(turns(1, 2), 2), ...turns(3, 4), ...summary(3), ...turns(5)];
  assert.equal(texts(sentOf(path)), "Summarize Short Q4 A4 Q5 A5");
  assert.equal(texts(summarizedOf(path.slice(0, 9))), "Q2 A2 Q3 A3 Summarize");
  assert.deepEqual(cutsOf(path).map(({ from }) => from), [2, 6]);
  path[8].isUndone = true;
  assert.equal(texts(sentOf(path)), "Q2 A2 Q3 A3 Q4 A4 Q5 A5");
  assert.equal(cutInForce(path).at, 3);
  const twice = [...turns(1), ...summary(1), ...turns(2, 3), ...summary(3), ...turns(4)];
  assert.equal(texts(summarizedOf(twice.slice(0, 9))), "Q1 A1 Q2 A2 Summarize".replace("Q1 A1", "Summarize Short"));
  assert.equal(texts(sentOf(twice)), "Summarize Short Q3 A3 Q4 A4");
});

test("an impossible number of kept messages keeps all", () => {
  assert.equal(texts(sentOf([...dropped(turns(1), 99), ...turns(2)])), "Q1 A1 Q2 A2");
});

const cost = () => 1;

test("the newest turns that fit are kept, and the oldest one never", () => {
  const path = turns(1, 2, 3, 4);
  assert.deepEqual(divide(path, 5, cost), { numTurns: 2, from: 4, end: 8 });
  assert.deepEqual(divide(path, -1, cost), { numTurns: 4, from: 8, end: 8 });
  assert.deepEqual(divide(path, 100, cost), { numTurns: 1, from: 2, end: 8 });
});

test("turns that the newest cut has kept are left out, and counted, with the older ones", () => {
  const path = [...dropped(turns(1, 2, 3), 4), ...turns(4, 5)];
  assert.deepEqual(divide(path, 2, cost), { numTurns: 3, from: 8, end: 10 });
});

test("only answered turns behind the newest cut can be left out", () => {
  const failed = [{ role: "user", text: "Q" }, { role: "assistant", text: "", state: "failed" }];
  assert.deepEqual(divide([...turns(1, 2), ...failed], 3, cost), { numTurns: 1, from: 2, end: 4 });
  assert.equal(divide(failed, 3, cost).numTurns, 0);
  assert.equal(divide([], 3, cost).numTurns, 0);
  assert.deepEqual(divide([...turns(1), ...summary(1), ...turns(2, 3)], 3, cost), { numTurns: 1, from: 6, end: 8 });
  assert.equal(divide(dropped(turns(1, 2), 2), 3, cost).numTurns, 0);
});

test("the meter has the server's counts, and an estimate from them after a cut", () => {
  const path = turns(1, 2, 3);
  path[5].usage = { prompt_tokens: 100, completion_tokens: 20 };
  assert.equal(tokensOf(path, {}), 120);
  assert.equal(tokensOf([...path, { role: "user", text: "Q4" }, { role: "assistant", text: "", watch: { tokens: 7 } }], {}), 127);
  assert.equal(tokensOf(dropped(path, 2), {}), 40);
  assert.equal(tokensOf(dropped(path, 2, { isUndone: true }), {}), 120);
  assert.equal(tokensOf([], {}), 0);
});
