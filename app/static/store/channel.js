// What the tabs of the page tell each other: which conversations have changed, and who is writing an answer or
// lets a question wait.

import { newId } from "../tree/records.js";

// Tabs answer at once, hidden ones too: messages are not delayed as timers are.
const ANSWER_MS = 300;
// By then a tab that was answered by none has taken over what it asked for.
const TAKEN_MS = 1000;

export class Channel {
  #channel = new BroadcastChannel("quire");
  #handlers;
  #tab = newId();
  /** When this tab has asked for what it asks for. @type {Map<string, number>} */
  #asked = new Map();

  /**
   * @param {{onSaved: (ids: string[], messages: string[]) => void, onRemoved: (ids: string[]) => void, onImported: () => void,
   *   holds: (id: string) => boolean}} handlers
   */
  constructor(handlers) {
    this.#handlers = handlers;
    this.#channel.onmessage = ({ data }) => this.#receive(data);
  }

  /** Tell the other tabs that conversations were changed, and which messages were removed. */
  saved(ids, messages) {
    this.#channel.postMessage({ kind: "saved", ids, messages });
  }

  /** Tell the other tabs that conversations were deleted. */
  removed(ids) {
    this.#channel.postMessage({ kind: "removed", ids });
  }

  /** Tell the other tabs that any conversation may have changed. */
  imported() {
    this.#channel.postMessage({ kind: "imported" });
  }

  /**
   * Whether another tab writes the answer with this id, or lets the question with it wait. Of tabs that ask at the same time
   * only the first one is told that none does, since it may take it over.
   * @param {string} message
   * @param {number} [ms] how long other tabs may take to answer
   * @returns {Promise<boolean>}
   */
  isHeldElsewhere(message, ms = ANSWER_MS) {
    if (!this.#asked.has(message)) this.#asked.set(message, performance.timeOrigin + performance.now());
    return new Promise((resolve) => {
      const settle = (isHeld) => {
        clearTimeout(timer);
        this.#channel.removeEventListener("message", hear);
        if (isHeld) this.#asked.delete(message);
        else setTimeout(() => this.#asked.delete(message), TAKEN_MS);
        resolve(isHeld);
      };
      const hear = ({ data }) => data.kind === "mine" && data.message === message && data.to === this.#tab && settle(true);
      const timer = setTimeout(() => settle(false), ms);
      this.#channel.addEventListener("message", hear);
      this.#channel.postMessage({ kind: "who", message, tab: this.#tab, since: this.#asked.get(message) });
    });
  }

  close() {
    this.#channel.close();
  }

  /** Whether this tab has asked for a message before another one did. */
  #wasFirst({ message, tab, since }) {
    const asked = this.#asked.get(message);
    return asked !== undefined && (asked < since || (asked === since && this.#tab < tab));
  }

  #receive(data) {
    const { kind, ids, messages, message, tab } = data;
    const { onSaved, onRemoved, onImported, holds } = this.#handlers;
    if (kind === "saved") onSaved(ids, messages);
    else if (kind === "removed") onRemoved(ids);
    else if (kind === "imported") onImported();
    else if (kind === "who" && (holds(message) || this.#wasFirst(data))) {
      this.#channel.postMessage({ kind: "mine", message, to: tab });
    }
  }
}
