// One answer as quire.v1 tells it: what has come, how far it has been shown, and when credit for more is due.
// No page and no socket: frames go in, frames to send come out.
//
//   waiting -> streaming <-> paused -> done | error | disconnected

// While a tenth of a second has not passed since the last credit, the next one waits.
const CREDIT_EVERY_MS = 100;
const ENDS = ["done", "error", "disconnected"];

export class Stream {
  state = "waiting";
  /** The text of each choice. */
  texts;
  finishReasons = {};
  /** The last `progress` frame, while the answer waits for what it tells of. */
  progress = null;
  /** The `error` frame that ended it. */
  failure = null;
  #window;
  #received;
  #shown;
  #allowed;
  #creditAt = -Infinity;
  #isCancelled = false;

  /** `window`: how many tokens of each choice may come before they are shown. */
  constructor(id, numChoices, window) {
    this.id = id;
    this.texts = Array(numChoices).fill("");
    this.#window = window;
    this.#received = Array(numChoices).fill(0);
    this.#shown = Array(numChoices).fill(0);
    this.#allowed = Array(numChoices).fill(window);
  }

  get isOver() {
    return ENDS.includes(this.state);
  }

  /** Take a frame of this stream. Returns whether it changed anything. */
  receive(frame) {
    switch (frame.t) {
      case "delta":
        return this.#add(frame);
      case "progress":
        this.progress = frame.phase === "decode" ? null : frame;
        return true;
      case "paused":
        this.state = "paused";
        return true;
      case "resumed":
        this.state = this.#received.some(Boolean) ? "streaming" : "waiting";
        return true;
      case "finish":
        this.finishReasons[frame.i] = frame.finish_reason;
        return true;
      case "done":
        return this.#end("done");
      case "error":
        this.failure = frame;
        return this.#end("error");
      default:
        return false;
    }
  }

  /**
   * Everything that has come is shown.
   * @returns {object | null} the frame that allows more, if at most half of the window is left
   */
  show(now) {
    this.#shown = [...this.#received];
    if (this.isOver || this.#isCancelled || now < this.#creditAt + CREDIT_EVERY_MS || !this.#isLow()) return null;
    this.#creditAt = now;
    this.#allowed = this.#shown.map((number) => number + this.#window);
    return { t: "credit", id: this.id, upto: this.#allowed };
  }

  /** The frame that ends the answer, unless it has ended or is about to. */
  cancel() {
    if (this.isOver || this.#isCancelled) return null;
    this.#isCancelled = true;
    return { t: "cancel", id: this.id };
  }

  /** The connection has ended before the stream. */
  disconnect() {
    this.#end("disconnected");
  }

  #add({ i, n, k, x }) {
    // What is not above the last number came before.
    if (n <= this.#received[i]) return false;
    this.#received[i] = n + k - 1;
    this.texts[i] += x;
    if (this.state === "waiting") this.state = "streaming";
    if (["queued", "prefill"].includes(this.progress?.phase)) this.progress = null;
    return true;
  }

  #isLow() {
    return this.#allowed.some(
      (allowed, i) => !(i in this.finishReasons) && 2 * (allowed - this.#shown[i]) <= this.#window,
    );
  }

  #end(state) {
    this.state = state;
    this.progress = null;
    return true;
  }
}
