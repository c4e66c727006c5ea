// The messages of a conversation as a tree: an edited question or a regenerated answer is a further child of the same
// parent. The shown branch is the path from a root to the head.

/** @typedef {import("./record_types.js").MessageRecord} MessageRecord */

export class Tree {
  /** @type {Map<string, any>} */
  #messages = new Map();
  /** @type {Map<string | null, any[]>} children of each parent, oldest first */
  #children = new Map();

  /** @param {Iterable<MessageRecord>} messages in any order */
  constructor(messages = []) {
    this.add(messages);
  }

  /** All messages. */
  get all() {
    return [...this.#messages.values()];
  }

  /** @returns {any} the message, or undefined */
  get(id) {
    return this.#messages.get(id);
  }

  /** Add messages, in any order: a child may come before its parent. */
  add(messages) {
    for (const message of messages) this.#messages.set(message.id, message);
    this.#link();
  }

  /** Remove a message, and return its children, which become children of its parent. */
  remove(id) {
    const removed = this.#messages.get(id);
    if (!removed) return [];
    const moved = this.childrenOf(id);
    for (const child of moved) child.parent = removed.parent;
    this.#messages.delete(id);
    this.#link();
    return moved;
  }

  /** The messages from the root to `head`; empty without one. */
  path(head) {
    const path = [];
    for (let message = this.get(head); message && path.length <= this.#messages.size; ) {
      path.push(message);
      message = message.parent === null ? undefined : this.get(message.parent);
    }
    return path.reverse();
  }

  /** The messages with the same parent, oldest first, among them `message`. */
  siblings(message) {
    return this.#children.get(this.#parentOf(message)) ?? [message];
  }

  /** The children of a message (null: the roots), oldest first. */
  childrenOf(id) {
    return this.#children.get(id) ?? [];
  }

  /** The end of the branch that begins with a message, following the newest children. */
  leaf(message) {
    let last = message;
    for (let left = this.#messages.size; left > 0; left -= 1) {
      const next = this.childrenOf(last.id).at(-1);
      if (!next) break;
      last = next;
    }
    return last;
  }

  /** The end of the newest branch, or null if the tree is empty. */
  newestLeaf() {
    const root = this.childrenOf(null).at(-1);
    return root ? this.leaf(root) : null;
  }

  /** A message whose parent is missing (a damaged record) is a root. */
  #parentOf(message) {
    return this.#messages.has(message.parent) ? message.parent : null;
  }

  #childrenOf(parent) {
    if (!this.#children.has(parent)) this.#children.set(parent, []);
    return this.#children.get(parent);
  }

  #link() {
    this.#children.clear();
    const byAge = this.all.sort((a, b) => a.createdAt - b.createdAt || (a.id < b.id ? -1 : 1));
    for (const message of byAge) this.#childrenOf(this.#parentOf(message)).push(message);
  }
}
