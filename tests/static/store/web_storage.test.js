import assert from "node:assert/strict";
import { test } from "node:test";
import { WebStorage } from "../../../app/static/store/web_storage.js";

function makeStorage(entries) {
  const methods = {
    getItem: (name) => entries.get(name) ?? null,
    setItem: (name, text) => entries.set(name, text),
    removeItem: (name) => entries.delete(name),
  };
  return Object.assign(Object.create(methods), Object.fromEntries(entries));
}

test("texts are in the storage", () => {
  const entries = new Map();
  const storage = new WebStorage(() => makeStorage(entries));
  assert.equal(storage.get("a"), null);
  storage.set("a", "1");
  assert.deepEqual([...entries], [["a", "1"]]);
  assert.equal(storage.get("a"), "1");
  assert.deepEqual(storage.names, ["a"]);
  storage.remove("a");
  assert.equal(entries.size, 0);
});

test("a blocked storage is stood in for", () => {
  const storage = new WebStorage(() => {
    throw new Error("blocked");
  });
  assert.equal(storage.get("a"), null);
  storage.set("a", "1");
  assert.equal(storage.get("a"), "1");
  assert.deepEqual(storage.names, ["a"]);
  storage.remove("a");
  assert.equal(storage.get("a"), null);
});

test("a text that a full storage rejects hides the one before until the storage takes one again", () => {
  const entries = new Map([["a", "old"]]);
  const full = Object.assign(makeStorage(entries), { setItem: () => { throw new Error("full"); } });
  let current = full;
  const storage = new WebStorage(() => current);
  storage.set("a", "new");
  assert.equal(storage.get("a"), "new");
  current = makeStorage(entries);
  storage.set("a", "newer");
  assert.equal(entries.get("a"), "newer");
  assert.equal(storage.get("a"), "newer");
});
