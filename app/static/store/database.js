// Conversations in IndexedDB. Each method is one transaction: it happens completely or not at all.

import { openDB } from "idb";
import { isConversation, isMessage, isPreset, toConversation, toMessage } from "../tree/records.js";
import { StorageProblem, problemOf } from "./problems.js";

const NAME = "quire";
const VERSION = 1;
// An opening that another tab's old version blocks for longer than this is given up. One that is only slow is not.
const BLOCKED_MS = 3000;

/**
 * Open the browser's storage.
 * @returns {Promise<Database>}
 * @throws {StorageProblem} absent, newer or failed
 */
export async function openDatabase() {
  if (!globalThis.indexedDB) throw new StorageProblem("absent");
  /** @type {any} */
  let timer;
  try {
    const db = await new Promise((resolve, reject) => {
      const blocked = () => {
        timer = setTimeout(() => reject(new StorageProblem("failed")), BLOCKED_MS);
      };
      openDB(NAME, VERSION, { upgrade, blocking: closeOld, blocked }).then(resolve, reject);
    });
    return new Database(db);
  } catch (error) {
    const problem = problemOf(error);
    // Private windows refuse to open a database, each browser with an error of its own.
    throw problem.kind === "newer" ? problem : new StorageProblem("absent", error);
  } finally {
    clearTimeout(timer);
  }
}

function upgrade(db) {
  db.createObjectStore("conversations", { keyPath: "id" });
  db.createObjectStore("messages", { keyPath: "id" }).createIndex("conversation", "conversation");
  db.createObjectStore("presets", { keyPath: "id" });
}

/** Let a newer version of the page, in another tab, change the database. */
function closeOld(_current, _blocked, event) {
  event.target.close();
}

export class Database {
  #db;

  constructor(db) {
    this.#db = db;
  }

  /** Whether records outlive the page. */
  get isLasting() {
    return true;
  }

  /** All conversations without their messages, and the number of damaged records. */
  async list() {
    return sound(await this.#read((tx) => tx.objectStore("conversations").getAll()), isConversation, toConversation);
  }

  /** The messages of one conversation, or of all, and the number of damaged records. */
  async messages(conversation) {
    const all = await this.#read((tx) => {
      const store = tx.objectStore("messages");
      return conversation === undefined ? store.getAll() : store.index("conversation").getAll(conversation);
    });
    return sound(all, isMessage, toMessage);
  }

  /**
   * Add or replace records, and remove messages.
   * @param {import("../tree/record_types.js").Records} records
   * @param {string[]} removed ids of messages
   */
  async write({ conversations, messages }, removed = []) {
    await this.#change(function* (tx) {
      for (const record of conversations) yield tx.objectStore("conversations").put(record);
      for (const record of messages) yield tx.objectStore("messages").put(record);
      for (const id of removed) yield tx.objectStore("messages").delete(id);
    });
  }

  /** Remove conversations with all their messages. @param {string[]} ids */
  async remove(ids) {
    await this.#change((tx) => ids.flatMap((id) => [tx.objectStore("conversations").delete(id), removeAll(tx, id)]));
  }

  /** All presets. */
  async presets() {
    const { found } = sound(await this.#read((tx) => tx.objectStore("presets").getAll()), isPreset, (preset) => preset);
    return found;
  }

  /** Add or replace a preset. */
  async writePreset(preset) {
    await this.#change((tx) => [tx.objectStore("presets").put(preset)]);
  }

  /** Remove a preset. */
  async removePreset(id) {
    await this.#change((tx) => [tx.objectStore("presets").delete(id)]);
  }

  close() {
    this.#db.close();
  }

  async #read(get) {
    try {
      return await get(this.#db.transaction(["conversations", "messages", "presets"]));
    } catch (error) {
      throw problemOf(error);
    }
  }

  /** @param {(tx: any) => Iterable<Promise<any>>} requests makes the requests one after another */
  async #change(requests) {
    const made = [];
    let tx;
    try {
      tx = this.#db.transaction(["conversations", "messages", "presets"], "readwrite");
      for (const request of requests(tx)) made.push(request);
      await Promise.all([...made, tx.done]);
    } catch (error) {
      if (tx) abort(tx, made);
      throw problemOf(error);
    }
  }
}

/** Undo what a transaction has done before one of its requests failed. */
function abort(tx, requests) {
  for (const request of [...requests, tx.done]) request.catch(() => {});
  try {
    tx.abort();
  } catch {
    // It has ended by itself.
  }
}

async function removeAll(tx, conversation) {
  const keys = await tx.objectStore("messages").index("conversation").getAllKeys(conversation);
  await Promise.all(keys.map((key) => tx.objectStore("messages").delete(key)));
}

/** The records that pass their check; damaged ones stay in the database. */
function sound(records, check, convert) {
  const found = records.filter(check).map(convert);
  return { found, numDamaged: records.length - found.length };
}
