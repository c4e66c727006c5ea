// What the tabs of the page tell each other: which conversations have changed, and who is writing an answer or
// lets a question wait.

// Tabs answer at once, hidden ones too: messages are not delayed as timers are.
const ANSWER_MS = 300;

export class Channel {
  #channel = new BroadcastChannel("quire");
  #handlers;

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

  /** Whether another tab writes the answer with this id, or lets the question with it wait. @returns {Promise<boolean>} */
  isHeldElsewhere(message) {
    return new Promise((resolve) => {
      const settle = (isHeld) => {
        clearTimeout(timer);
        this.#channel.removeEventListener("message", hear);
        resolve(isHeld);
      };
      const hear = ({ data }) => data.kind === "mine" && data.message === message && settle(true);
      const timer = setTimeout(() => settle(false), ANSWER_MS);
      this.#channel.addEventListener("message", hear);
      this.#channel.postMessage({ kind: "who", message });
    });
  }

  close() {
    this.#channel.close();
  }

  #receive({ kind, ids, messages, message }) {
    const { onSaved, onRemoved, onImported, holds } = this.#handlers;
    if (kind === "saved") onSaved(ids, messages);
    else if (kind === "removed") onRemoved(ids);
    else if (kind === "imported") onImported();
    else if (kind === "who" && holds(message)) this.#channel.postMessage({ kind: "mine", message });
  }
}
