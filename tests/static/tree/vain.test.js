import assert from "node:assert/strict";
import test from "node:test";
import { Tree } from "../../../app/static/tree/tree.js";
import { removeVain } from "../../../app/static/tree/vain.js";

const question = (id, parent, more = {}) => ({ id, parent, role: "user", text: id, createdAt: 0, ...more });
const answer = (id, parent, more = {}) => ({ id, parent, role: "assistant", text: id, state: "done", createdAt: 0, ...more });
const turn = [question("q1", null), answer("a1", "q1")];
const left = (tree) => tree.all.map(({ id }) => id);

test("a summary that was not completed is removed with its question", () => {
  for (const state of ["failed", "disconnected", "interrupted", "stopped"]) {
    const tree = new Tree([...turn, question("s", "a1", { keeps: 1 }), answer("t", "s", { state })]);
    assert.deepEqual(removeVain(tree, "t"), { head: "a1", changed: [], removed: ["t", "s"] });
    assert.deepEqual(left(tree), ["q1", "a1"]);
  }
});

test("a summary that is complete, or is being written, stays", () => {
  for (const state of ["done", "waiting", "streaming"]) {
    const tree = new Tree([...turn, question("s", "a1", { keeps: 1 }), answer("t", "s", { state })]);
    assert.deepEqual(removeVain(tree, "t"), { head: "t", changed: [], removed: [] });
  }
});

test("what follows a removed summary follows what was before it", () => {
  const later = [question("q2", "t"), answer("a2", "q2")];
  const tree = new Tree([...turn, question("s", "a1", { keeps: 1 }), answer("t", "s", { state: "failed" }), ...later]);
  assert.equal(removeVain(tree, "a2").head, "a2");
  assert.deepEqual(tree.path("a2").map(({ id }) => id), ["q1", "a1", "q2", "a2"]);
});
