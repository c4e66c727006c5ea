// The conversation: what was asked, what was answered, and the one stream that may be open.
// An answer is waiting -> streaming -> done | stopped | failed; the last three are ends.
// Whoever draws it is told through `onChange`; `version` grows with each change of a message.

import { Stopwatch } from "./figures.js";

const STORED_AS = "quire.conversation";

export class Conversation {
  messages = [];
  #link;
  #onChange;
  #count = 0;

  /**
   * @param {{start: (id: string, request: object) => void, cancel: (id: string) => void}} link
   * @param {() => void} onChange
   */
  constructor(link, onChange) {
    this.#link = link;
    this.#onChange = onChange;
    this.#restore();
  }

  /** The answer that is being written, or undefined. */
  get open() {
    const last = this.messages.at(-1);
    return last?.state === "waiting" || last?.state === "streaming" ? last : undefined;
  }

  /** Ask the model; the answer so far stays open until it ends. */
  ask(text) {
    this.messages.push(this.#message("user", text));
    this.#answer();
  }

  /** Ask the last question again after its answer has failed. */
  retry() {
    this.messages.pop();
    this.#answer();
  }

  /** End the open answer here; what has come stays. */
  stop() {
    const answer = this.open;
    if (!answer) return;
    this.#link.cancel(answer.id);
    this.#end(answer, "stopped");
  }

  /** Forget everything; an open stream is cancelled. */
  clear() {
    this.stop();
    this.messages = [];
    this.#save();
    this.#onChange();
  }

  /** Apply one frame of the server. Frames of streams that have ended here are ignored. */
  receive(frame) {
    const answer = this.open;
    if (!answer || (frame.id ?? answer.id) !== answer.id) return;
    if (frame.t === "delta") this.#append(answer, frame);
    else if (frame.t === "finish") answer.finish = frame.finish_reason;
    else if (frame.t === "done") this.#end(answer, "done");
    else if (frame.t === "error") this.#fail(answer, frame.message);
  }

  /** The connection is gone, and with it the open stream. */
  lose() {
    if (this.open) this.#fail(this.open, "The connection to the server broke before the answer was complete.");
  }

  #answer() {
    const messages = this.#history();
    const answer = { ...this.#message("assistant", ""), state: "waiting", watch: new Stopwatch(performance.now()) };
    this.messages.push(answer);
    this.#link.start(answer.id, { messages });
    this.#onChange();
  }

  /** What the model is told: a question whose answer ended before its first word is left out with it. */
  #history() {
    const isEmpty = (message) => message?.role === "assistant" && !message.text;
    return this.messages
      .filter((message, index) => !isEmpty(message) && !isEmpty(this.messages[index + 1]))
      .map(({ role, text }) => ({ role, content: text }));
  }

  #append(answer, { k, x }) {
    answer.state = "streaming";
    answer.text += x.replaceAll("\r", "");
    answer.watch.add(k, performance.now());
    this.#touch(answer);
  }

  #fail(answer, message) {
    answer.error = message;
    this.#end(answer, "failed");
  }

  #end(answer, state) {
    answer.state = state;
    answer.watch.stop(performance.now());
    answer.figures = answer.watch.read(performance.now());
    this.#save();
    this.#touch(answer);
  }

  #touch(message) {
    message.version += 1;
    this.#onChange();
  }

  #message(role, text) {
    this.#count += 1;
    return { id: `m${this.#count}`, role, text, version: 0 };
  }

  /** Survive a reload of this tab. A full storage costs only that. */
  #save() {
    const kept = this.messages.map(({ watch, ...message }) => message);
    try {
      sessionStorage.setItem(STORED_AS, JSON.stringify(kept));
    } catch {
      sessionStorage.removeItem(STORED_AS);
    }
  }

  #restore() {
    try {
      const kept = JSON.parse(sessionStorage.getItem(STORED_AS) ?? "[]");
      this.messages = kept.map((message) => ({ ...message, id: this.#message().id }));
    } catch {
      sessionStorage.removeItem(STORED_AS);
    }
  }
}
