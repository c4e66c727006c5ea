// All conversations: their list, search, and what is written to the storage. Changes are kept in memory until they are
// stored, and are shown and exported from there; if the storage fails, they are tried again with the next change.
// `onChange` is called after every change of the list or the problem.

import { toConversation, toMessage } from "../tree/records.js";
import { Channel } from "./channel.js";
import { openDatabase } from "./database.js";
import { damagedText, problemOf } from "./problems.js";

/** @typedef {import("../tree/record_types.js").ConversationRecord} ConversationRecord */

export class Library {
  /** Whether the list has been read. */
  isOpen = false;
  /** @type {Map<string, ConversationRecord>} */
  #conversations = new Map();
  /** What is not stored yet, or is just being stored: the storage may still be read without it. */
  #changes = { conversations: new Map(), messages: new Map(), removed: new Set() };
  /** The records that are stored, by id. @type {Map<string, ConversationRecord>} */
  #stored = new Map();
  #failure = "";
  #damage = "";
  /** @type {any} */
  #database = null;
  #channel;
  /** Made for the first search. @type {import("./search.js").Search | null} */
  #search = null;
  /** @type {(value?: any) => void} */
  #opened;
  #opening = new Promise((resolve) => {
    this.#opened = resolve;
  });
  /** What is saved before the storage is open is stored then. */
  #flushing = this.#opening;
  #onChange;
  #listeners;

  /**
   * @param {() => void} onChange
   * @param {{onSaved: (id: string, removed: string[]) => void, onRemoved: (ids: string[]) => void,
   *   holds: (id: string) => boolean}} listeners called when another tab has changed a conversation, and removed messages;
   *   `holds` says whether this page writes the answer with an id, or lets the question with it wait
   */
  constructor(onChange, listeners) {
    this.#onChange = onChange;
    this.#listeners = listeners;
    this.#channel = new Channel({
      onSaved: (ids, messages) => this.#reload().then(() => ids.forEach((id) => listeners.onSaved(id, messages))),
      onRemoved: (ids) => {
        this.#forget(ids);
        this.#reload();
      },
      onImported: () => this.#reload(),
      // Also while its end is being stored.
      holds: (id) => listeners.holds(id) || this.unstored.messages.some((message) => message.id === id),
    });
  }

  /** Open the storage and read the list; conversations that were made before are stored now. */
  async open() {
    try {
      this.#database = await openDatabase();
    } catch (error) {
      const { MemoryDatabase } = await import("./memory.js");
      this.#database = new MemoryDatabase();
      this.#failure = problemOf(error).message;
    }
    this.#opened();
    await this.#reload();
    this.isOpen = true;
    this.#onChange();
  }

  /** What is wrong with the storage, in words, or "". */
  get problem() {
    return this.#failure || this.#damage;
  }

  /** All conversations, pinned ones first, the newest before older ones. */
  get list() {
    return [...this.#conversations.values()].sort(
      (a, b) => Number(b.isPinned) - Number(a.isPinned) || b.updatedAt - a.updatedAt || (a.id < b.id ? 1 : -1),
    );
  }

  /** @returns {ConversationRecord | undefined} */
  get(id) {
    return this.#conversations.get(id);
  }

  /**
   * The messages of a conversation or of all, unless they cannot be read.
   * @param {string} [id]
   * @returns {Promise<any[] | undefined>}
   */
  async messages(id) {
    await this.#opening;
    const found = await this.#read(this.#database.messages(id));
    if (!found) return undefined;
    const { messages, removed } = this.#changes;
    const unstored = [...messages.values()].filter(({ conversation }) => id === undefined || conversation === id);
    return [...found.filter((message) => !messages.has(message.id) && !removed.has(message.id)), ...unstored];
  }

  /**
   * Keep a conversation, messages of it that have changed, and forget removed messages.
   * @param {any} conversation
   * @param {any[]} messages
   * @param {string[]} removed
   */
  save(conversation, messages = [], removed = []) {
    const record = toConversation(conversation);
    this.#conversations.set(record.id, record);
    const changes = this.#changes;
    changes.conversations.set(record.id, record);
    for (const message of messages) {
      changes.messages.set(message.id, toMessage(message));
      changes.removed.delete(message.id);
    }
    for (const id of removed) {
      changes.messages.delete(id);
      changes.removed.add(id);
    }
    this.#search?.add([...messages, ...removed.map((id) => ({ id, conversation: record.id, text: "" }))]);
    this.#flush();
    this.#onChange();
  }

  /** Change fields of a conversation. @param {Partial<ConversationRecord>} fields */
  update(id, fields) {
    if (this.#conversations.has(id)) this.save({ ...this.#conversations.get(id), ...fields });
  }

  /**
   * Delete conversations.
   * @param {string[]} ids
   * @returns {Promise<true | void>} whether they are deleted
   */
  async remove(ids) {
    // Also before: another tab may be writing there.
    this.#channel.removed(ids);
    this.#forget(ids);
    await this.#flushing;
    const isRemoved = await this.#database.remove(ids).then(() => true, (error) => this.#report(error));
    if (isRemoved) {
      this.#channel.removed(ids);
      // There may be room now for what could not be stored.
      this.#flush();
    }
    // A reading meanwhile has found them still stored.
    await this.#reload();
    return isRemoved;
  }

  /**
   * Add new conversations, all or none.
   * @param {import("../tree/record_types.js").Records} records
   * @throws {import("./problems.js").StorageProblem} nothing was stored
   */
  async add(records) {
    await this.#database.write(records);
    this.#channel.imported();
    await this.#reload();
  }

  /** The conversations with all words of a query, in the order of the list, and places in them. @param {string} query */
  async search(query) {
    const search = await this.prepareSearch();
    return search.find(this.list, query);
  }

  /** Read all texts, so that later searches read none. */
  async prepareSearch() {
    const { Search } = await import("./search.js");
    this.#search ??= new Search(() => this.messages());
    await this.#search.prepare();
    return this.#search;
  }

  /** Whether another tab writes the answer with this id, or lets the question with it wait. */
  isHeldElsewhere(id, ms = undefined) {
    return this.#channel.isHeldElsewhere(id, ms);
  }

  /**
   * Changes that are not stored yet; `changed` are ids of stored conversations, and `listed` has what the user has changed in
   * the list of each.
   */
  get unstored() {
    const { conversations, messages, removed } = this.#changes;
    const changed = [...conversations.keys()].filter((id) => this.#stored.has(id));
    const listed = Object.fromEntries(changed.map((id) => [id, changesOfUser(conversations.get(id), this.#stored.get(id))]));
    return { conversations: [...conversations.values()], messages: [...messages.values()], removed: [...removed], changed, listed };
  }

  /** Resolves when all changes are stored, or the storage has failed. */
  settled() {
    return this.#flushing;
  }

  /** The storage of presets, when it is open. @returns {Promise<any>} */
  async presets() {
    await this.#opening;
    return this.#database;
  }

  close() {
    this.#channel.close();
    this.#database?.close();
  }

  async #reload() {
    if (!this.#database) return;
    const found = await this.#read(this.#database.list());
    // What is shown stays.
    if (!found) return;
    this.#conversations = new Map(found.map((record) => [record.id, record]));
    this.#stored = new Map(this.#conversations);
    for (const [id, record] of this.#changes.conversations) this.#conversations.set(id, record);
    this.#search?.outdate();
    this.#onChange();
  }

  /** The records that are found, or undefined. */
  async #read(reading) {
    try {
      const { found, numDamaged } = await reading;
      if (numDamaged) {
        this.#damage = damagedText(numDamaged);
        this.#onChange();
      }
      return found;
    } catch (error) {
      this.#report(error);
      return undefined;
    }
  }

  #forget(ids) {
    const { conversations, messages } = this.#changes;
    for (const id of ids) {
      this.#conversations.delete(id);
      this.#search?.remove(id);
      conversations.delete(id);
    }
    for (const { id, conversation } of messages.values()) if (ids.includes(conversation)) messages.delete(id);
    this.#listeners.onRemoved(ids);
    this.#onChange();
  }

  /** Store the changes, one transaction after another. */
  #flush() {
    this.#flushing = this.#flushing.then(async () => {
      const changes = this.#changes;
      const { conversations, messages, removed } = this.unstored;
      try {
        await this.#database.write({ conversations, messages }, removed);
        if (this.#database.isLasting) this.#say("");
        // What has changed meanwhile is another record.
        for (const record of conversations) {
          if (changes.conversations.get(record.id) === record) changes.conversations.delete(record.id);
        }
        for (const record of messages) {
          if (changes.messages.get(record.id) === record) changes.messages.delete(record.id);
        }
        for (const id of removed) changes.removed.delete(id);
        const ids = conversations.map(({ id }) => id);
        for (const record of conversations) this.#stored.set(record.id, record);
        if (ids.length) this.#channel.saved(ids, removed);
      } catch (error) {
        this.#report(error);
      }
    });
  }

  #report(error) {
    this.#say(problemOf(error).message);
  }

  #say(failure) {
    if (this.#failure === failure) return;
    this.#failure = failure;
    this.#onChange();
  }
}

/** The title that the user has given, and the pin, where the stored record has others. */
function changesOfUser({ title, titleFrom, isPinned }, stored) {
  const isRenamed = titleFrom === "user" && (title !== stored.title || titleFrom !== stored.titleFrom);
  return { ...(isRenamed && { title, titleFrom }), ...(isPinned !== stored.isPinned && { isPinned }) };
}
