// Libraries of the tests, each with a storage of its own in memory; they are closed after each test.

import { IDBFactory } from "fake-indexeddb";
import "fake-indexeddb/auto";
import { afterEach, beforeEach } from "node:test";
import { Database } from "../../../app/static/store/database.js";
import { Library } from "../../../app/static/store/library.js";
import { StorageProblem } from "../../../app/static/store/problems.js";
import { newConversation } from "../../../app/static/tree/records.js";

let opened = [];
/** Ids of the answers that all tabs say to be writing. */
export const writing = new Set();

beforeEach(() => {
  globalThis.indexedDB = new IDBFactory();
});

afterEach(() => {
  for (const library of opened) library.close();
  opened = [];
});

/** A library as a page has it before it is opened. */
export function make(listeners = {}) {
  const library = new Library(() => {}, {
    onSaved: () => {}, onRemoved: () => {}, holds: (id) => writing.has(id), ...listeners,
  });
  opened.push(library);
  return library;
}

export async function open(listeners = {}) {
  const library = make(listeners);
  await library.open();
  return library;
}

export const message = (conversation, id, text, parent = null) => ({
  id, conversation: conversation.id, parent, role: "user", text, createdAt: 1, watch: {}, version: 4,
});

export async function saved(library, title, texts = ["a question"], at = 1) {
  const conversation = { ...newConversation(at), title };
  library.save(conversation, texts.map((text, index) => message(conversation, `${conversation.id}-${index}`, text)));
  await library.settled();
  return conversation;
}

/** Run while a method of the storage is another one, which gets the first. */
export const replaced = (name, method, run) => {
  const { [name]: first } = Database.prototype;
  Database.prototype[name] = function (...values) {
    return method.call(this, first, ...values);
  };
  return run().finally(() => (Database.prototype[name] = first));
};

/** Run while the storage refuses to write, or another method. */
export const failing = (kind, run, name = "write") => replaced(name, () => Promise.reject(new StorageProblem(kind)), run);
