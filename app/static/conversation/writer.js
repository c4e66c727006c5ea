// Writes the open answer of a conversation: asks the server for it, receives it, and goes on with it when the connection,
// or the page that has begun it, has ended.

import { append, end, endOf, takeOver } from "../tree/answer.js";
import { noteBegun, noteEnded } from "./begun.js";
import { FORGOTTEN, goesOn, INTERRUPTION, isLast, lossOf } from "./losses.js";

const CONTINUE_FIELDS = ["continue_final_message", "add_generation_prompt"];

export class Writer {
  /** @type {any} the open answer, or null */
  answer = null;
  #link;
  #listeners;

  /**
   * @param {import("./service_types.js").Services["link"]} link
   * @param {{onChange: () => void, onGrowth: () => void, onEnd: (answer: any) => void,
   *   askForRest: (begun: string) => Record<string, any>}} listeners `onGrowth` is called when the answer has more text, or
   *   waits for something else; `askForRest` makes the request for the rest of a stored answer where the server cannot
   *   continue one
   */
  constructor(link, listeners) {
    this.#link = link;
    this.#listeners = listeners;
  }

  /** Ask for a new answer, as soon as the link is ready. */
  begin(answer) {
    this.answer = answer;
    this.connect();
  }

  /** Go on with an answer that no page writes any more; without a position it has its request. */
  takeOver(answer) {
    takeOver(answer, performance.now());
    this.begin(answer);
    this.#listeners.onChange();
  }

  /** Ask for the answer or its rest, if the link is ready. */
  connect() {
    const { answer } = this;
    if (!answer || answer.stream || !this.#link.isReady) return;
    const { id, position, request } = answer;
    if (position) {
      answer.stream = this.#link.resume(id, position);
      return;
    }
    answer.model = this.#link.model;
    answer.numSent = (answer.numSent ?? 0) + 1;
    answer.stream = this.#link.start(id, request, id);
  }

  /** Stop the answer; its text so far is kept. */
  stop() {
    if (!this.answer) return;
    this.#cancel();
    this.#end("stopped");
  }

  /** End the answer without a word, because its conversation was deleted. */
  discard() {
    const { answer } = this;
    if (!answer) return;
    this.#cancel();
    noteEnded(answer);
    this.answer = null;
  }

  /** Apply one frame that has changed the stream of the answer; others are ignored. */
  receive(stream, frame) {
    const { answer } = this;
    if (answer?.stream !== stream) return;
    answer.position = stream.position ?? undefined;
    if (frame.t === "accepted") answer.numRefused = 0;
    if (frame.t === "accepted" && answer.position) noteBegun(answer);
    if (frame.t === "finish") answer.finish = endOf(frame);
    else if (frame.t === "done") this.#end("done", frame);
    else if (frame.t === "error") this.#reject(frame);
    else {
      if (frame.t === "delta") append(answer, frame, performance.now());
      this.#listeners.onGrowth();
    }
  }

  /** The connection was closed with `code`: the answer waits for the next one, or ends. */
  lose(code) {
    const { answer } = this;
    if (answer) answer.numRefused = 0;
    if (!answer || (!answer.stream && !isLast(code))) return;
    if (goesOn(answer, code)) this.#hold();
    else this.#fail("disconnected", lossOf(code));
  }

  #cancel() {
    const { id, position, request, stream, numSent } = this.answer;
    // Without a position the server may have begun it, too, if it was sent, and not keep it, if it was accepted.
    const isSent = numSent && !stream?.isAccepted;
    this.#link.cancel(id, position ? { position } : isSent ? { request } : null);
  }

  /** The server takes no further reader of the answer. Those that are gone without a word leave after a while. */
  #comeLater() {
    const { answer } = this;
    answer.numRefused = (answer.numRefused ?? 0) + 1;
    this.#hold();
    setTimeout(() => this.connect(), this.#link.delayAfter(answer.numRefused));
  }

  #hold() {
    this.answer.stream = null;
    this.#listeners.onChange();
  }

  #reject({ code, message, param }) {
    const { answer } = this;
    if (code === "unsupported_parameter" && CONTINUE_FIELDS.includes(param)) return this.#askForRest();
    // In another tab.
    if (code === "stream_cancelled") return this.#end("stopped");
    if (code === "rate_limit_exceeded" && answer.position) return this.#comeLater();
    if (code === "stream_not_found" || param === "after") return this.#fail("interrupted", FORGOTTEN, code);
    // The page that has sent it had other settings.
    if (code === "idempotency_conflict") return this.#fail("interrupted", INTERRUPTION, code);
    if (code !== "draining" || answer.state !== "waiting") return this.#fail("failed", message, code);
    // The server that shuts down has not begun it: the next one is asked.
    answer.position = undefined;
    this.#hold();
  }

  /** The server cannot continue an answer: ask the model for the rest. */
  #askForRest() {
    const { answer } = this;
    this.#link.canContinue = false;
    answer.request = this.#listeners.askForRest(answer.begun);
    Object.assign(answer, { stream: null, position: undefined });
    this.connect();
    this.#listeners.onChange();
  }

  #fail(state, error, code = undefined) {
    Object.assign(this.answer, { error, code });
    this.#end(state);
  }

  #end(state, frame = undefined) {
    const { answer } = this;
    this.answer = null;
    noteEnded(answer);
    end(answer, state, frame, performance.now());
    this.#listeners.onEnd(answer);
  }
}
