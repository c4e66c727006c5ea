import { openDB } from "idb";
import assert from "node:assert/strict";
import test from "node:test";
import { addImported } from "../../../app/static/store/copies.js";
import { PROBLEMS, problemOf } from "../../../app/static/store/problems.js";
import { newConversation } from "../../../app/static/tree/records.js";
import { failing, message, open, saved } from "./libraries.js";

test("an import that cannot be stored leaves nothing behind", async () => {
  const library = await open();
  const conversation = newConversation(1);
  const records = { conversations: [conversation], messages: [message(conversation, "x", "text")] };
  records.messages[0].broken = () => {}; // IndexedDB cannot store functions
  await assert.rejects(addImported(library, records));
  assert.deepEqual(library.list, []);
  assert.deepEqual((await open()).list, []);
});

test("without a storage conversations stay in memory, and the page says so", async () => {
  globalThis.indexedDB = undefined;
  const library = await open();
  assert.equal(library.problem, PROBLEMS.absent);
  const conversation = await saved(library, "kept", ["a"]);
  assert.equal((await library.messages(conversation.id)).length, 1);
  assert.equal(library.problem, PROBLEMS.absent);
});

test("a database of a newer version is left as it is", async () => {
  const newer = await openDB("quire", 7, { upgrade: (db) => void db.createObjectStore("future") });
  newer.close();
  const library = await open();
  assert.equal(library.problem, PROBLEMS.newer);
  await saved(library, "in memory");
  const again = await openDB("quire", 7);
  assert.deepEqual([...again.objectStoreNames], ["future"]);
  again.close();
});

test("while the storage is full new messages stay in memory, and are stored when there is room", async () => {
  const library = await open();
  const conversation = await saved(library, "one", ["stored"]);
  await failing("full", async () => {
    library.save(conversation, [message(conversation, "new", "not stored")]);
    await library.settled();
    assert.equal(library.problem, PROBLEMS.full);
    assert.equal((await library.messages(conversation.id)).length, 2);
    assert.equal((await (await open()).messages(conversation.id)).length, 1);
  });
  library.update(conversation.id, { title: "two" });
  await library.settled();
  assert.equal(library.problem, "");
  assert.equal((await (await open()).messages(conversation.id)).length, 2);
});

test("a list that cannot be read stays as it was", async () => {
  const library = await open();
  await saved(library, "one");
  await failing("failed", () => library.add({ conversations: [], messages: [] }), "list");
  assert.deepEqual([library.list.length, library.problem], [1, PROBLEMS.failed]);
});

test("messages that cannot be read are undefined, not none", async () => {
  const library = await open();
  const conversation = await saved(library, "one");
  await failing("failed", async () => assert.equal(await library.messages(conversation.id), undefined), "messages");
});

test("each error of IndexedDB is told in words of its own", () => {
  const kinds = Object.entries({
    QuotaExceededError: "full", VersionError: "newer", InvalidStateError: "replaced", UnknownError: "failed", DataError: "failed",
  });
  for (const [name, kind] of kinds) {
    const problem = problemOf(new DOMException("refused", name));
    assert.deepEqual([problem.kind, problem.message], [kind, PROBLEMS[kind]], name);
  }
});

test("a full storage, as the browser reports it, is told as full", async () => {
  const library = await open();
  const conversation = await saved(library, "one");
  const { put } = IDBObjectStore.prototype;
  IDBObjectStore.prototype.put = () => {
    throw new DOMException("no room", "QuotaExceededError");
  };
  library.update(conversation.id, { title: "two" });
  await library.settled().finally(() => (IDBObjectStore.prototype.put = put));
  assert.equal(library.problem, PROBLEMS.full);
});

test("a tab whose storage a newer version of the page has taken over says so", async () => {
  const library = await open();
  const conversation = await saved(library, "one");
  const newer = await openDB("quire", 2);
  library.update(conversation.id, { title: "two" });
  await library.settled();
  assert.equal(library.problem, PROBLEMS.replaced);
  assert.equal(library.get(conversation.id).title, "two");
  newer.close();
});

test("damaged records are named, not shown and not deleted", async () => {
  const library = await open();
  const conversation = await saved(library, "one", ["whole"]);
  const db = await openDB("quire", 1);
  await db.put("messages", { id: "bad", conversation: conversation.id, role: "wizard", text: 5 });
  await db.put("conversations", { id: "worse" });
  const later = await open();
  assert.match(later.problem, /One stored record is damaged/);
  assert.equal((await later.messages(conversation.id)).length, 1);
  assert.equal(later.list.length, 1);
  later.update(conversation.id, { title: "two" });
  await later.settled();
  assert.match(later.problem, /One stored record is damaged/);
  assert.ok((await db.get("messages", "bad")) && (await db.get("conversations", "worse")));
  db.close();
});

/** Run with timers that are over as soon as they are started. */
async function withoutTime(run) {
  const { setTimeout: set } = globalThis;
  globalThis.setTimeout = /** @type {any} */ ((end) => queueMicrotask(end));
  return run().finally(() => (globalThis.setTimeout = set));
}

test("a storage that opens slowly is used", async () => {
  await saved(await open(), "kept");
  const library = await withoutTime(() => open());
  assert.deepEqual([library.list.length, library.problem], [1, ""]);
});

test("a storage that a tab with an old version keeps from opening is given up", async () => {
  const old = await openDB("quire", 1, { upgrade: (db) => void db.createObjectStore("old") });
  const { indexedDB: factory } = globalThis;
  globalThis.indexedDB = /** @type {any} */ ({ open: (name) => factory.open(name, 2) });
  const library = await withoutTime(() => open());
  assert.equal(library.problem, PROBLEMS.absent);
  old.close();
});
