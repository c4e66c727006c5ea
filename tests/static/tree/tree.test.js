import assert from "node:assert/strict";
import test from "node:test";
import { titleOf } from "../../../app/static/conversation/title.js";
import { Tree } from "../../../app/static/tree/tree.js";

let clock = 0;
const message = (id, parent) => ({ id, parent, role: "user", text: id, createdAt: (clock += 1) });
const ids = (messages) => messages.map(({ id }) => id);

test("the path leads from the root to the head, and siblings are in the order of their age", () => {
  const [a, b, c, d] = [message("a", null), message("b", "a"), message("c", "a"), message("d", "c")];
  const tree = new Tree([d, c, b, a]);
  assert.deepEqual(ids(tree.path("d")), ["a", "c", "d"]);
  assert.deepEqual(ids(tree.siblings(c)), ["b", "c"]);
  assert.equal(tree.leaf(a).id, "d");
  assert.equal(tree.newestLeaf().id, "d");
});

test("a child that is added before its parent is a child, not a root", () => {
  const [a, b, c] = [message("a", null), message("b", "a"), message("c", "b")];
  const tree = new Tree([a]);
  tree.add([c, b]);
  assert.deepEqual(ids(tree.path("c")), ["a", "b", "c"]);
  assert.deepEqual(ids(tree.siblings(a)), ["a"]);
  assert.equal(tree.leaf(a).id, "c");
});

test("an empty tree has no path and no leaf", () => {
  assert.deepEqual(new Tree().path(null), []);
  assert.equal(new Tree().newestLeaf(), null);
});

test("the children of a removed message move to its parent", () => {
  const tree = new Tree([message("a", null), message("b", "a"), message("c", "b")]);
  tree.remove("b");
  assert.deepEqual(ids(tree.path("c")), ["a", "c"]);
  tree.remove("a");
  assert.deepEqual(ids(tree.path("c")), ["c"]);
});

test("messages without their parent, and messages in a circle, are shown and end nothing", () => {
  const tree = new Tree([message("lost", "nowhere"), message("x", "y"), message("y", "x")]);
  assert.deepEqual(ids(tree.path("lost")), ["lost"]);
  assert.ok(tree.path("x").length <= 4);
  assert.ok(tree.leaf(tree.get("x")));
});

test("a title is the first line of the question, cut between words", () => {
  const title = (text) => titleOf({ text, files: [{ name: "notes.txt" }] });
  assert.equal(title("  ## What is   Quire?\nAnd more"), "What is Quire?");
  assert.equal(title("\n"), "Untitled");
  assert.equal(title(""), "notes.txt");
  const long = title("word ".repeat(40));
  assert.ok(long.length <= 61 && long.endsWith("word…"));
  assert.equal(title("x".repeat(100)), `${"x".repeat(60)}…`);
  assert.ok(!/[\ud800-\udbff]…/.test(title("🧵".repeat(50) + "x")));
});
