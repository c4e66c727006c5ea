import assert from "node:assert/strict";
import test from "node:test";
import { deleteFrom, deletedWith, restoreIn } from "../../../app/static/tree/deletion.js";
import { Tree } from "../../../app/static/tree/tree.js";
import { ask, askDraft, begin, library, refuse, reopened, reply, texts } from "../conversation/conversations.js";

test("an answer that was shown as interrupted has no failure any more when its tab completes it", () => {
  const writer = begin();
  writer.ask("Why?");
  const watcher = reopened(writer);
  writer.receive(writer.open.stream, { t: "delta", k: 1, x: "So" });
  Object.assign(watcher.messages.at(-1), { state: "interrupted", error: "Lost.", code: "lost" });
  reply(writer, ".");
  watcher.merge(library.get(writer.id), library.messages(writer.id));
  const { text, state, error, code } = watcher.messages.at(-1);
  assert.deepEqual([text, state, error, code], ["So.", "done", undefined, undefined]);
});

test("only messages that another tab has changed have another version", () => {
  const writer = begin();
  ask(writer, "One?", "First.");
  ask(writer, "Two?", "Second.");
  const watcher = reopened(writer);
  const before = watcher.messages.map(({ version }) => version);
  writer.update(writer.messages[1], { keeps: 2 });
  watcher.merge(library.get(writer.id), library.messages(writer.id));
  const changed = watcher.messages.map(({ version }, index) => version !== before[index]);
  assert.deepEqual(changed, [false, true, false, false]);
});

test("messages that another tab has moved and removed are moved and removed here", () => {
  const writer = begin();
  ask(writer, "One?", "First.");
  writer.ask("Two?");
  writer.draft.write("Three?");
  refuse(writer);
  const failed = writer.messages.at(-1);
  askDraft(writer);
  reply(writer, "Third.");
  const watcher = reopened(writer);
  writer.takeBack(failed);
  askDraft(writer);
  reply(writer, "Second.");
  watcher.merge(library.get(writer.id), library.messages(writer.id));
  assert.deepEqual(texts(watcher), ["One?", "First.", "Three?", "Third.", "Two?", "Second."]);
});

test("a save here leaves the draft and the settings that another tab has stored", () => {
  const here = begin();
  ask(here, "One?", "First.");
  const there = reopened(here);
  there.draft.write("A long thought");
  there.keep();
  there.configure({ temperature: 0.2 });
  here.update(here.messages[1], { keeps: 2 });
  const { draft, settings } = library.get(here.id);
  assert.deepEqual([draft, settings], ["A long thought", { temperature: 0.2 }]);
  here.merge(library.get(here.id), library.messages(here.id));
  assert.deepEqual([here.draft.text, here.settings], ["A long thought", { temperature: 0.2 }]);
});

test("a draft of this page is stored again after another tab has sent a question", () => {
  const here = begin();
  ask(here, "One?", "First.");
  const there = reopened(here);
  here.draft.write("Mine");
  here.keep();
  there.draft.write("Theirs?");
  askDraft(there);
  assert.equal(library.get(here.id).draft, "");
  here.merge(library.get(here.id), library.messages(here.id));
  here.keep();
  assert.deepEqual([here.draft.text, library.get(here.id).draft], ["Mine", "Mine"]);
  reply(there, "Yes.");
  assert.equal(library.get(here.id).draft, "Mine");
});

test("a question that waits in one tab is no draft of another, and is put back when that tab has ended", async () => {
  const here = begin();
  here.ask("One?");
  here.receive(here.open.stream, { t: "delta", k: 1, x: "Half" });
  here.draft.write("");
  here.ask("Two?");
  here.keep();
  const there = reopened(here);
  assert.deepEqual([there.draft.text, there.draft.queued], ["", null]);
  there.draft.write("Mine");
  await there.settle(async () => true);
  assert.equal(there.draft.text, "Two?\n\nMine");
  assert.deepEqual([library.get(here.id).draft, library.get(here.id).queued], ["Two?\n\nMine", null]);
});

test("a question that waits for another tab is asked once its answer is whole, and put back if it is not", () => {
  for (const state of ["done", "stopped"]) {
    const writer = begin();
    writer.ask("One?");
    const other = reopened(writer);
    other.ask("Two?");
    assert.equal(other.open, undefined);
    assert.equal(other.draft.queued.text, "Two?");
    writer.receive(writer.open.stream, { t: "delta", k: 1, x: "First." });
    if (state === "done") writer.receive(writer.open.stream, { t: "done" });
    else writer.stop();
    other.merge(library.get(writer.id), library.messages(writer.id));
    assert.equal(other.draft.queued, null);
    assert.deepEqual(texts(other), state === "done" ? ["One?", "First.", "Two?", "waiting"] : ["One?", "First."]);
    assert.equal(other.draft.text, state === "done" ? "" : "Two?");
  }
});

test("a question that waits for another tab waits on after a reload, unless a tab still lets it wait", async () => {
  for (const isHeld of [true, false]) {
    const writer = begin();
    writer.ask("One?");
    const other = reopened(writer);
    other.ask("Two?");
    other.keep();
    const { id } = library.get(writer.id).queued;
    const later = reopened(writer);
    // The writer still writes.
    await later.settle(async (each) => each === id && !isHeld);
    assert.equal(later.draft.queued?.text, isHeld ? undefined : "Two?");
    reply(writer, "First.");
    later.merge(library.get(writer.id), library.messages(writer.id));
    assert.deepEqual(texts(later), isHeld ? ["One?", "First."] : ["One?", "First.", "Two?", "waiting"]);
    assert.equal(library.get(writer.id).queued?.text, isHeld ? "Two?" : undefined);
  }
});

test("a question that is taken from the queue does not wait again before that is stored", async () => {
  const writer = begin();
  writer.ask("One?");
  const other = reopened(writer);
  other.ask("Two?");
  other.keep();
  other.draft.unqueue();
  await other.settle(async (each) => each === library.get(writer.id).queued.id);
  assert.deepEqual([other.draft.queued, other.draft.text], [null, "Two?"]);
});

test("a question that was asked meanwhile does not wait again", async () => {
  const writer = begin();
  writer.ask("One?");
  const other = reopened(writer);
  other.ask("Two?");
  other.keep();
  const later = reopened(writer);
  await later.settle(async (each) => {
    if (each !== other.draft.queued?.id) return false;
    reply(writer, "First.");
    other.merge(library.get(writer.id), library.messages(writer.id));
    return true;
  });
  assert.equal(later.draft.queued, null);
});

test("a cut that another tab has made and undone is none here", () => {
  const writer = begin();
  for (const number of ["1", "2", "3"]) ask(writer, `${number}?`, `${number}.`);
  writer.update(writer.messages[5], { keeps: 2 });
  const watcher = reopened(writer);
  const follow = () => watcher.merge(library.get(writer.id), library.messages(writer.id));
  const gone = deletedWith(new Tree(writer.all), writer.messages[5]);
  const { deletion } = writer.change((tree, head) => deleteFrom(tree, head, gone));
  follow();
  assert.equal(watcher.messages[3].keeps, 0);
  writer.change((tree, head) => restoreIn(tree, head, deletion));
  follow();
  assert.deepEqual(watcher.messages.map(({ keeps }) => keeps), [undefined, undefined, undefined, undefined, undefined, 2]);
});

test("a message that this page has written goes when another tab says that it was removed", () => {
  const writer = begin();
  ask(writer, "One?", "First.");
  ask(writer, "Two?", "Second.");
  const [, , { id }, answer] = writer.messages;
  const left = library.messages(writer.id).slice(0, 2);
  // Without a word it may only be not stored yet.
  writer.merge(library.get(writer.id), left);
  assert.equal(writer.messages.length, 4);
  writer.merge(library.get(writer.id), left, [id, answer.id]);
  assert.deepEqual(texts(writer), ["One?", "First."]);
});
