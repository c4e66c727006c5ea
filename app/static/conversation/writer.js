// Writes the open answer of a conversation: asks the server for it, receives it, and goes on with it when the connection,
// or the page that has begun it, has ended. Several answers may be open at once: the choices of one request, in one stream.

import { append, end, finish, hasFinished, takeOver } from "../tree/answer.js";
import { positionOf } from "../tree/beside.js";
import { noteBegun, noteEnded } from "./begun.js";
import { FORGOTTEN, goesOn, INTERRUPTION, isLast, lossOf } from "./losses.js";

const CONTINUE_FIELDS = ["continue_final_message", "add_generation_prompt"];

export class Writer {
  /** The open answers, in the order of their choices. @type {any[]} */
  answers = [];
  #link;
  #listeners;

  /**
   * @param {import("./service_types.js").Services["link"]} link
   * @param {{onChange: () => void, onGrowth: () => void, onEnd: (answers: any[]) => void,
   *   askForRest: (begun: string) => Record<string, any>}} listeners `onGrowth` is called when the answer has more text, or
   *   waits for something else; `askForRest` makes the request for the rest of a stored answer where the server cannot
   *   continue one
   */
  constructor(link, listeners) {
    this.#link = link;
    this.#listeners = listeners;
  }

  /** The open answer, the first one of several, or null. */
  get answer() {
    return this.answers[0] ?? null;
  }

  /** The open answers as they are now, to store them. */
  get measured() {
    for (const answer of this.answers) answer.figures = answer.watch.read(performance.now());
    return this.answers;
  }

  /** Ask for a new answer or, if it is for several, for all of them, as soon as the link is ready. */
  begin(...answers) {
    this.answers = answers;
    this.connect();
  }

  /** Go on with answers that no page writes any more; without a position the first one has their request. */
  takeOver(...answers) {
    for (const each of answers) takeOver(each, performance.now());
    this.begin(...answers);
    this.#listeners.onChange();
  }

  /** Ask for the answers or their rest, if the link is ready. */
  connect() {
    const { answer } = this;
    if (!answer || answer.stream || !this.#link.isReady) return;
    const { id, request } = answer;
    const position = positionOf(this.answers);
    if (position) return this.#set({ stream: this.#link.resume(id, position) });
    answer.numSent = (answer.numSent ?? 0) + 1;
    this.#set({ model: this.#link.model, stream: this.#link.start(id, request, id) });
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
    this.answers = [];
  }

  /** Apply one frame that has changed the stream of the answers; others are ignored. */
  receive(stream, frame) {
    const { answer, answers } = this;
    if (!answer || answer.stream !== stream) return;
    const { position } = stream;
    answers.forEach((each, number) => {
      each.position = position ? { stream: position.stream, after: [position.after[number]] } : undefined;
    });
    if (frame.t === "accepted") this.#set({ numRefused: 0 });
    if (frame.t === "accepted" && answer.position) noteBegun(answer);
    const own = answers[frame.i ?? 0];
    if (frame.t === "finish") finish(own, frame, performance.now());
    else if (frame.t === "done") this.#end("done", frame);
    else if (frame.t === "error") this.#reject(frame);
    else {
      if (frame.t === "delta") append(own, frame, performance.now());
      this.#listeners.onGrowth();
    }
  }

  /** The connection was closed with `code`: the answer waits for the next one, or ends. */
  lose(code) {
    const { answer } = this;
    this.#set({ numRefused: 0 });
    if (!answer || (!answer.stream && !isLast(code))) return;
    if (goesOn(answer, code)) this.#hold();
    else this.#fail("disconnected", lossOf(code));
  }

  #cancel() {
    const { id, request, stream, numSent } = this.answer;
    const position = positionOf(this.answers);
    // Without a position the server may have begun it, too, if it was sent, and not keep it, if it was accepted.
    const isSent = numSent && !stream?.isAccepted;
    this.#link.cancel(id, position ? { position } : isSent ? { request } : null);
  }

  /** The server takes no further reader of the answer. Those that are gone without a word leave after a while. */
  #comeLater() {
    const numRefused = (this.answer.numRefused ?? 0) + 1;
    this.#set({ numRefused });
    this.#hold();
    setTimeout(() => this.connect(), this.#link.delayAfter(numRefused));
  }

  #hold() {
    for (const { watch } of this.answers) watch.pause(performance.now());
    this.#set({ stream: null });
    this.#listeners.onChange();
  }

  /** Set fields of all answers. */
  #set(fields) {
    for (const each of this.answers) Object.assign(each, fields);
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
    if (code !== "draining" || this.answers.some(({ state }) => state !== "waiting")) return this.#fail("failed", message, code);
    // The server that shuts down has not begun it: the next one is asked.
    this.#set({ position: undefined });
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
    for (const each of this.answers) if (!hasFinished(each)) Object.assign(each, { error, code });
    this.#end(state);
  }

  #end(state, frame = undefined) {
    const { answers } = this;
    this.answers = [];
    noteEnded(answers[0]);
    const size = this.#link.details?.max_model_len;
    for (const each of answers) end(each, hasFinished(each) ? "done" : state, frame, performance.now(), size);
    this.#listeners.onEnd(answers);
  }
}
