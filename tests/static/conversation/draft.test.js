import assert from "node:assert/strict";
import test from "node:test";
import { Draft } from "../../../app/static/conversation/draft.js";

const FILE = { name: "notes.txt", text: "notes" };

function make(fields = {}) {
  let numChanges = 0;
  const draft = new Draft({ draft: "", ...fields }, () => (numChanges += 1));
  return { draft, changes: () => numChanges };
}

test("only what this page has written is stored, and what it has emptied is stored once", () => {
  const { draft } = make({ draft: "stored", files: [FILE] });
  assert.deepEqual(draft.take(), {});
  draft.write("typed");
  assert.deepEqual(draft.take(), { draft: "typed", files: [FILE] });
  assert.deepEqual(draft.take(), { draft: "typed", files: [FILE] });
  draft.write("");
  assert.deepEqual(draft.detachAll(), [FILE]);
  assert.deepEqual(draft.take(), { draft: "", files: [] });
  assert.deepEqual(draft.take(), {});
});

test("a waiting question is stored without the text, which another tab may be writing", () => {
  const { draft } = make();
  draft.queue("Then?", []);
  const { queued } = draft.take();
  assert.deepEqual([queued.text, queued.files], ["Then?", []]);
  draft.unqueue();
  assert.deepEqual(draft.take(), { draft: "Then?", files: [], queued: null });
  assert.deepEqual(draft.take(), { draft: "Then?", files: [] });
});

test("a draft that this page has not written follows that of another tab", () => {
  const { draft } = make({ draft: "old" });
  draft.merge({ draft: "new", files: [FILE] });
  assert.deepEqual([draft.text, draft.files], ["new", [FILE]]);
  draft.merge({ draft: "" });
  assert.deepEqual([draft.text, draft.files], ["", []]);
});

test("a draft that this page has written stays, and is stored again where another tab has emptied its own", () => {
  const { draft, changes } = make();
  draft.write("mine");
  draft.take();
  draft.merge({ draft: "theirs" });
  assert.deepEqual([draft.text, changes()], ["mine", 1]);
  draft.merge({ draft: "" });
  assert.deepEqual([draft.text, changes()], ["mine", 2]);
});

test("a waiting question is stored again where another tab did not know of it, and another tab's is not replaced", () => {
  const { draft, changes } = make();
  draft.queue("Then?", []);
  const { queued } = draft.take();
  draft.merge({ draft: "", queued });
  draft.merge({ draft: "", queued: { id: "other", text: "Theirs?", files: [] } });
  assert.equal(changes(), 1);
  draft.merge({ draft: "" });
  assert.deepEqual([changes(), draft.take().queued], [2, queued]);
});

test("a question that is put back stands before what is being written, with its files", () => {
  const { draft } = make();
  draft.write("Half");
  draft.attach([{ name: "more.txt", text: "more" }]);
  draft.putBack({ text: "Why?", files: [FILE] });
  assert.equal(draft.text, "Why?\n\nHalf");
  assert.deepEqual(draft.files.map(({ name }) => name), ["notes.txt", "more.txt"]);
  draft.detach(0);
  assert.deepEqual(draft.files.map(({ name }) => name), ["more.txt"]);
});
