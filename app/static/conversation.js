// The conversation: questions, answers, and the one stream that may be open.
// An answer is waiting -> streaming -> done | stopped | failed | disconnected; the last four are final. While the
// server is shutting down, a waiting answer has no stream: its request is sent on the next connection.
// A question whose answer fails before its first token goes back into the draft, where it can be edited.
// `onChange` is called after every change; `version` of a message grows with each of its changes.

import { Stopwatch } from "./figures.js";

const STORED_AS = "quire.conversation";

const CLOSE_TOO_LARGE = 1009;
const CLOSE_RESTART = 1012;
const CLOSE_SLOW = 4499;
const LOSSES = {
  [CLOSE_TOO_LARGE]: "The message is too large for this server. Shorten it.",
  [CLOSE_RESTART]: "The server shut down before the answer was complete.",
  [CLOSE_SLOW]: "The server disconnected, because this page did not read the answer in time.",
};
const LOSS = "The connection to the server was lost before the answer was complete.";

export class Conversation {
  messages = [];
  /** The text in the input field. */
  draft = "";
  #link;
  #onChange;
  #count = 0;

  /**
   * @param {{isReady: boolean, start: (id: string, request: object) => Stream, cancel: (id: string) => void}} link
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

  /** Set the draft. */
  write(text) {
    this.draft = text;
    this.#onChange();
  }

  /** Send a question. Questions that went back into the draft are removed. */
  ask(text) {
    const isReturned = (message) => message?.isReturned;
    this.messages = this.messages.filter((each, index) => !isReturned(each) && !isReturned(this.messages[index + 1]));
    this.messages.push(this.#message("user", text));
    this.#answer();
  }

  /** Ask the last question again after its answer has failed or was disconnected. */
  retry() {
    this.messages.pop();
    if (this.draft === this.messages.at(-1).text) this.draft = "";
    this.#answer();
  }

  /** Put a question without any answer text back into the draft, before the text in it. */
  takeBack(answer) {
    const question = this.messages[this.messages.indexOf(answer) - 1];
    answer.isReturned = true;
    this.draft = [question.text, this.draft].filter(Boolean).join("\n\n");
    this.#touch(answer);
  }

  /** Stop the open answer; its text so far is kept. */
  stop() {
    const answer = this.open;
    if (!answer) return;
    this.#link.cancel(answer.id);
    this.#end(answer, "stopped");
  }

  /** Remove all messages; an open stream is cancelled. */
  clear() {
    this.stop();
    this.messages = [];
    this.#save();
    this.#onChange();
  }

  /** Start a waiting answer, because the link is ready. */
  resume() {
    if (this.open && !this.open.stream) this.#start(this.open);
  }

  /** Apply one frame that has changed a stream. Frames of answers that have ended are ignored. */
  receive(stream, frame) {
    const answer = this.open;
    if (answer?.stream !== stream) return;
    if (frame.t === "delta") this.#append(answer, frame);
    else if (frame.t === "finish") answer.finish = frame.finish_reason;
    else if (frame.t === "done") this.#end(answer, "done", frame.timings);
    else if (frame.t === "error") this.#reject(answer, frame);
    else this.#onChange();
  }

  /** End the open answer, because the connection was closed with `code`. */
  lose(code) {
    if (this.open?.stream) this.#fail(this.open, "disconnected", LOSSES[code] ?? LOSS);
  }

  #answer() {
    const request = { messages: this.#history() };
    const watch = new Stopwatch(performance.now());
    this.messages.push({ ...this.#message("assistant", ""), state: "waiting", watch, request, stream: null });
    if (this.#link.isReady) this.#start(this.open);
    this.#onChange();
  }

  #start(answer) {
    answer.stream = this.#link.start(answer.id, answer.request);
  }

  /** Fail an answer; if the server rejected it because it is shutting down, send it on the next connection instead. */
  #reject(answer, { code, message }) {
    if (code === "draining" && answer.state === "waiting") {
      answer.stream = null;
      this.#onChange();
    } else {
      this.#fail(answer, "failed", message);
    }
  }

  /** The messages of the request, without questions whose answer has no text. */
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

  #fail(answer, state, message) {
    answer.error = message;
    this.#end(answer, state);
    // Only into an empty draft: text that the user has typed meanwhile is not changed.
    if (!answer.text && !this.draft) this.takeBack(answer);
  }

  #end(answer, state, timings) {
    answer.state = state;
    answer.watch.stop(performance.now(), timings?.decode_tok_s);
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

  /** Save the messages for a reload of this tab; if the storage is full, they are not kept. */
  #save() {
    const kept = this.messages.map(({ watch, request, stream, isReturned, ...message }) => message);
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
