import assert from "node:assert/strict";
import test from "node:test";
import { Database } from "../../../app/static/store/database.js";
import { editName } from "../../../app/static/store/edits.js";
import { PROBLEMS } from "../../../app/static/store/problems.js";
import { removeRecords, restoreRecords } from "../../../app/static/store/removal.js";
import { tabStorage } from "../../../app/static/store/web_storage.js";
import { failing, message, open, replaced, saved } from "./libraries.js";

test("deleted conversations can be put back with all their messages", async () => {
  const library = await open();
  const [one, two] = [await saved(library, "one", ["a", "b"]), await saved(library, "two")];
  const removed = await removeRecords(library, [one.id, two.id]);
  assert.deepEqual(library.list, []);
  assert.deepEqual((await open()).list, []);
  restoreRecords(library, removed);
  assert.equal(library.list.length, 2);
  await library.settled();
  assert.equal((await (await open()).messages(one.id)).length, 2);
});

test("what was being written in an editor goes with its conversation, and comes back with it", async () => {
  const library = await open();
  const [one, two] = [await saved(library, "one"), await saved(library, "two")];
  const names = [one, two].map(({ id }) => editName({ conversation: id, id: `${id}-0` }));
  for (const name of names) tabStorage.set(name, "half");
  await failing("failed", () => removeRecords(library, [one.id]), "remove");
  assert.deepEqual(names.map((name) => tabStorage.get(name)), ["half", "half"]);
  const removed = await removeRecords(library, [one.id]);
  assert.deepEqual(names.map((name) => tabStorage.get(name)), [null, "half"]);
  restoreRecords(library, removed);
  assert.deepEqual(names.map((name) => tabStorage.get(name)), ["half", "half"]);
});

test("another tab reads the list once when many conversations are put back", async () => {
  const one = await open();
  const ids = [];
  for (const title of ["a", "b", "c"]) ids.push((await saved(one, title)).id);
  const removed = await removeRecords(one, ids);
  let numReadings = 0;
  const told = [];
  const two = await open({ onSaved: (id) => told.push(id) });
  await replaced("list", function (list) {
    numReadings += 1;
    return list.call(this);
  }, async () => {
    restoreRecords(one, removed);
    while (two.list.length < 3 || told.length < 3) await new Promise((resolve) => setImmediate(resolve));
  });
  assert.deepEqual([new Set(told), numReadings], [new Set(ids), 1]);
});

/** A library with a conversation to keep, which has a message, and an old one to delete. */
async function openWithTwo() {
  const library = await open();
  return { library, kept: await saved(library, "kept", ["stored"]), old: await saved(library, "old") };
}

/** Save a message that the full storage cannot store. */
async function saveUnstored(library, conversation) {
  library.save(conversation, [message(conversation, "new", "not stored")]);
  await library.settled();
}

test("deleting a conversation while the storage is still full does not hide that messages are not stored", async () => {
  const { library, kept, old } = await openWithTwo();
  await failing("full", async () => {
    await saveUnstored(library, kept);
    await removeRecords(library, [old.id]);
    await library.settled();
    assert.equal(library.problem, PROBLEMS.full);
  });
});

test("deleting a conversation makes room: what waits is stored then", async () => {
  const { library, kept, old } = await openWithTwo();
  await failing("full", () => saveUnstored(library, kept));
  await removeRecords(library, [old.id]);
  await library.settled();
  assert.equal(library.problem, "");
  assert.equal((await (await open()).messages(kept.id)).length, 2);
});

test("deleting in a browser that stores nothing leaves the warning", async () => {
  globalThis.indexedDB = undefined;
  const library = await open();
  const conversation = await saved(library, "one");
  await removeRecords(library, [conversation.id]);
  await library.settled();
  assert.deepEqual([library.list, library.problem], [[], PROBLEMS.absent]);
});

test("what cannot be put back is kept, named, and stored with the next change", async () => {
  const library = await open();
  const conversation = await saved(library, "one", ["a", "b"]);
  const removed = await removeRecords(library, [conversation.id]);
  await failing("full", async () => {
    restoreRecords(library, removed);
    await library.settled();
    assert.equal(library.problem, PROBLEMS.full);
    assert.deepEqual([library.list.length, (await library.messages(conversation.id)).length], [1, 2]);
  });
  library.update(conversation.id, { isPinned: true });
  await library.settled();
  assert.equal((await (await open()).messages(conversation.id)).length, 2);
});

test("conversations whose messages cannot be read are not deleted", async () => {
  const library = await open();
  const conversation = await saved(library, "one");
  await failing("failed", async () => assert.equal(await removeRecords(library, [conversation.id]), undefined), "messages");
  assert.deepEqual([library.list.length, library.problem], [1, PROBLEMS.failed]);
  assert.equal((await (await open()).messages(conversation.id)).length, 1);
});

test("a removal that fails leaves the conversation, and what was not stored of it", async () => {
  const library = await open();
  const conversation = await saved(library, "one", ["stored"]);
  await failing("full", async () => {
    library.save(conversation, [message(conversation, "new", "not stored")]);
    await failing("failed", () => removeRecords(library, [conversation.id]), "remove");
    await library.settled();
    assert.deepEqual([library.list.length, (await library.messages(conversation.id)).length], [1, 2]);
  });
});

test("another tab learns of a removal before it happens: it may be writing an answer there", async () => {
  const one = await open();
  const told = [];
  await open({ onRemoved: (ids) => told.push(...ids) });
  const conversation = await saved(one, "shared");
  let toldBefore;
  await replaced("remove", async function (remove, ids) {
    while (!told.length) await new Promise((resolve) => setImmediate(resolve));
    toldBefore = [...told];
    return remove.call(this, ids);
  }, () => one.remove([conversation.id]));
  assert.deepEqual(toldBefore, [conversation.id]);
});

test("a list that is read while a removal is being stored does not show what is removed", async () => {
  const library = await open();
  const conversation = await saved(library, "one");
  const { remove } = Database.prototype;
  Database.prototype.remove = async function (ids) {
    await library.add({ conversations: [], messages: [] }); // any other change of the storage
    return remove.call(this, ids);
  };
  try {
    await library.remove([conversation.id]);
  } finally {
    Database.prototype.remove = remove;
  }
  assert.deepEqual(library.list, []);
});
