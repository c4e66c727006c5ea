import assert from "node:assert/strict";
import test from "node:test";
import { sentOf } from "../../../app/static/tree/cut.js";
import { deleteFrom, deletedWith, restoreIn } from "../../../app/static/tree/deletion.js";
import { Tree } from "../../../app/static/tree/tree.js";

/** A tree of `[id, parent, fields]`; ids of questions begin with q, those of results with r. */
function makeTree(...messages) {
  return new Tree(messages.map(([id, parent, fields], index) => ({
    id, parent, role: /^[qr]/.test(id) ? "user" : "assistant", text: id, state: "done", createdAt: index, ...fields,
  })));
}

/** @param {any} tree */
const ids = (tree, head) => tree.path(head).map(({ id }) => id);
/** @param {any} tree */
const sent = (tree, head) => sentOf([...tree.path(head), { id: "next", role: "user", text: "?" }]).map(({ id }) => id);
const TURNS = [["q1", null], ["a1", "q1"], ["q2", "a1"], ["a2", "q2"], ["q3", "a2"], ["a3", "q3"]];

// A turn with a call of a tool, and one without.
const CALLED = [["q1", null], ["a1", "q1", { tools: [{}] }], ["r1", "a1", { results: [] }], ["b1", "r1"], ["q2", "b1"], ["a2", "q2"]];

/** @param {any} tree */
function remove(tree, head, id) {
  return deleteFrom(tree, head, deletedWith(tree, tree.get(id)));
}

test("a turn goes, and what follows it follows what was before; both come back", () => {
  for (const id of ["q2", "a2"]) {
    const tree = makeTree(...TURNS);
    const { head, changed, removed, deletion } = remove(tree, "a3", id);
    assert.deepEqual(ids(tree, head), ["q1", "a1", "q3", "a3"]);
    assert.deepEqual([removed, changed.map((each) => each.id)], [["q2", "a2"], ["q3"]]);
    const restored = restoreIn(tree, head, deletion);
    assert.deepEqual(ids(tree, restored.head), ["q1", "a1", "q2", "a2", "q3", "a3"]);
    assert.deepEqual(restored.changed.map((each) => each.id), ["q2", "a2", "q3"]);
  }
});

test("the last turn goes, and the branch ends before it until it comes back", () => {
  const tree = makeTree(...TURNS);
  const { head, deletion } = remove(tree, "a3", "q3");
  assert.equal(head, "a2");
  assert.equal(restoreIn(tree, head, deletion).head, "a3");
});

test("a question goes with all of its answers, and all that followed them stays", () => {
  const tree = makeTree(...TURNS, ["a2b", "q2"], ["q4", "a2b"]);
  const { head, deletion } = remove(tree, "a3", "q2");
  assert.deepEqual(ids(tree, head), ["q1", "a1", "q3", "a3"]);
  assert.deepEqual(ids(tree, "q4"), ["q1", "a1", "q4"]);
  restoreIn(tree, head, deletion);
  assert.deepEqual(ids(tree, "q4"), ["q1", "a1", "q2", "a2b", "q4"]);
});

test("one of several answers goes with what follows it, and another one is shown", () => {
  const tree = makeTree(...TURNS, ["a2b", "q2"], ["q4", "a2b"], ["a4", "q4"]);
  const { head, removed, deletion } = remove(tree, "a4", "a2b");
  assert.deepEqual(removed, ["a2b", "q4", "a4"]);
  assert.equal(head, "a3");
  assert.deepEqual(ids(tree, restoreIn(tree, head, deletion).head), ["q1", "a1", "q2", "a2b", "q4", "a4"]);
});

test("what was asked meanwhile stays shown when a turn comes back", () => {
  const tree = makeTree(...TURNS);
  const { deletion } = remove(tree, "a3", "q2");
  tree.add([{ id: "q9", parent: "a3", role: "user", text: "", createdAt: 9 }]);
  assert.deepEqual(ids(tree, restoreIn(tree, "q9", deletion).head), ["q1", "a1", "q2", "a2", "q3", "a3", "q9"]);
});

test("a cut leaves out the same messages when a turn is deleted before, within or behind what it keeps", () => {
  for (const [id, expected] of [["q1", ["q2", "a2", "q3", "a3", "next"]], ["q2", ["q3", "a3", "next"]]]) {
    const tree = makeTree(...TURNS);
    Object.assign(tree.get("a3"), { keeps: 4 });
    const { head, deletion } = remove(tree, "a3", id);
    assert.deepEqual(sent(tree, head), expected);
    assert.deepEqual(sent(tree, restoreIn(tree, head, deletion).head), ["q2", "a2", "q3", "a3", "next"]);
  }
});

test("a deleted turn that was the cut leaves it to the one before", () => {
  for (const [keeps, expected] of [[4, ["q2", "a2", "next"]], [2, ["next"]]]) {
    const tree = makeTree(...TURNS);
    Object.assign(tree.get("a3"), { keeps });
    const { head, deletion } = remove(tree, "a3", "a3");
    assert.deepEqual(sent(tree, head), expected);
    restoreIn(tree, head, deletion);
    assert.equal(tree.get("a2").keeps, undefined);
    assert.equal(tree.get("a3").keeps, keeps);
  }
});

test("a message without its question goes alone", () => {
  const tree = makeTree(["a1", null], ["q2", "a1"], ["a2", "q2"]);
  assert.deepEqual(ids(tree, remove(tree, "a2", "a1").head), ["q2", "a2"]);
});

test("a turn with calls of tools goes as a whole, and comes back", () => {
  for (const id of ["q1", "a1", "r1", "b1"]) {
    const tree = makeTree(...CALLED);
    const { head, removed, deletion } = remove(tree, "a2", id);
    assert.deepEqual([ids(tree, head), removed], [["q2", "a2"], ["q1", "a1", "r1", "b1"]], id);
    assert.deepEqual(ids(tree, restoreIn(tree, head, deletion).head), ["q1", "a1", "r1", "b1", "q2", "a2"]);
  }
});

test("one of several results goes with its answer, and leaves the calls and the others", () => {
  const tree = makeTree(...CALLED, ["r2", "a1", { results: [] }], ["b2", "r2"]);
  const { head, removed } = remove(tree, "b2", "b2");
  assert.deepEqual(removed, ["r2", "b2"]);
  assert.deepEqual(ids(tree, head), ["q1", "a1", "r1", "b1", "q2", "a2"]);
});

test("a question that left calls without results is no version of them", () => {
  const tree = makeTree(...CALLED, ["q3", "a1"], ["a3", "q3"]);
  remove(tree, "a2", "b1");
  assert.deepEqual([ids(tree, "a2"), ids(tree, "a3")], [["q2", "a2"], ["q3", "a3"]]);
});

test("a deleted turn with calls that was the cut leaves it to the turn before", () => {
  const [, ...others] = CALLED;
  const tree = makeTree(["q0", null], ["a0", "q0"], ["q1", "a0"], ...others);
  // Two messages of the turn before are still sent.
  Object.assign(tree.get("b1"), { keeps: 5 });
  assert.deepEqual(sent(tree, "b1"), ["a0", "q1", "a1", "r1", "b1", "next"]);
  const { head } = remove(tree, "a2", "b1");
  assert.deepEqual([tree.get("a0").keeps, sent(tree, head)], [1, ["a0", "q2", "a2", "next"]]);
});
