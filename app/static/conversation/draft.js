// What the user is writing: the text in the input field, the files beside it, and a question that waits for the end of
// the open answer.

import { newId } from "../tree/records.js";

export class Draft {
  text;
  files;
  /** @type {import("../tree/record_types.js").DraftFields["queued"]} */
  queued = null;
  /** Whether this page has let a question wait, also if that is not stored, or not any more. */
  isQueueOwn = false;
  /** Whether this page has written the text and files. */
  #isOwn = false;
  #onChange;

  /**
   * @param {import("../tree/record_types.js").DraftFields} record
   * @param {() => void} onChange
   */
  constructor({ draft, files }, onChange) {
    this.text = draft;
    this.files = files ?? [];
    this.#onChange = onChange;
  }

  get isEmpty() {
    return !this.text && !this.files.length;
  }

  /** The fields of a conversation's record. @returns {import("../tree/record_types.js").DraftFields} */
  get stored() {
    return { draft: this.text, files: this.files, queued: this.queued };
  }

  /** The fields that this page has written, once if they are empty. */
  take() {
    const { draft, files, queued } = this.stored;
    const taken = { ...(this.#isOwn && { draft, files }), ...(this.isQueueOwn && { queued }) };
    this.#isOwn &&= !this.isEmpty;
    this.isQueueOwn &&= Boolean(queued);
    return taken;
  }

  /** Take over another tab's draft, but store this page's again where that is empty, and its question that waits. */
  merge({ draft, files, queued }) {
    if (!this.#isOwn) Object.assign(this, { text: draft, files: files ?? [] });
    else if (!draft && !files?.length && !this.isEmpty) this.#change();
    // That tab did not know of it yet.
    if (this.queued && !queued) this.#onChange();
  }

  /** Set the text. */
  write(text) {
    this.text = text;
    this.#change();
  }

  /** Put files beside the text. */
  attach(files) {
    this.files = [...this.files, ...files];
    this.#change();
  }

  /** Remove a file. */
  detach(index) {
    this.files = this.files.filter((_, each) => each !== index);
    this.#change();
  }

  /** Remove all files, and return them. */
  detachAll() {
    const { files } = this;
    this.files = [];
    this.#change();
    return files;
  }

  /** Put a question back, before what is being written. */
  putBack({ text, files = [] }) {
    this.files = [...files, ...this.files];
    this.write([text, this.text].filter(Boolean).join("\n\n"));
  }

  /** Remove a question that was put back and has not been changed; files that were added to it stay. */
  withdraw({ text, files = [] }) {
    if (this.text !== text) return;
    const known = files.map((file) => file.name + file.text);
    this.files = this.files.filter((file) => !known.includes(file.name + file.text));
    this.write("");
  }

  /** Let a question wait. */
  queue(text, files) {
    this.adopt({ id: newId(), text, files });
  }

  /** Let a question wait that another page has stored. */
  adopt(queued) {
    this.queued = queued;
    this.isQueueOwn = true;
    this.#onChange();
  }

  /** Put the waiting question back. */
  unqueue() {
    const { queued } = this;
    this.queued = null;
    if (queued) this.putBack(queued);
  }

  #change() {
    this.#isOwn = true;
    this.#onChange();
  }
}
