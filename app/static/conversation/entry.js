// What is stored of a conversation besides its messages and its draft: its entry in the list, and its settings.

import { titleOf } from "./title.js";

export class Entry {
  settings;
  /** Whether the settings were set here, and are not stored. */
  isConfigured = false;
  #record;

  /** @param {import("../tree/record_types.js").ConversationRecord} record */
  constructor(record) {
    this.#record = record;
    this.settings = record.settings;
  }

  get id() {
    return this.#record.id;
  }

  /** The settings, if they are to be stored. */
  get configured() {
    return this.isConfigured && { settings: this.settings };
  }

  /** Set the settings. */
  configure(settings) {
    this.settings = settings;
    this.isConfigured = true;
  }

  /** A question was asked. */
  touch(now) {
    this.#record.updatedAt = now;
  }

  /** Take over what another tab has stored, but keep what was set here. */
  merge(record) {
    this.#record = record;
    if (!this.isConfigured) this.settings = record.settings;
  }

  /**
   * The record to store. A title that neither the user nor the model has written is that of the first question.
   * @param {any} known the record as the list and other tabs have changed it, or undefined
   * @param {any} first the first question, or undefined
   * @param {Partial<import("../tree/record_types.js").ConversationRecord>} fields that have changed here
   */
  take(known, first, fields) {
    const { updatedAt } = this.#record;
    const record = { ...this.#record, ...(known ?? { settings: this.settings }), updatedAt, ...fields, ...this.configured };
    if (first && record.titleFrom === "question") record.title = titleOf(first);
    this.#record = record;
    this.isConfigured = false;
    return record;
  }
}
