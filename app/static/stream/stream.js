// One stream of quire.v1: received tokens, how far they have been shown, and when credit is due.
// Without a page and a socket: takes frames, and returns frames to send.
//
//   waiting -> streaming <-> paused -> done | error | disconnected

// Minimum time between two `credit` frames.
const CREDIT_EVERY_MS = 100;
const ENDS = ["done", "error", "disconnected"];

export class Stream {
  state = "waiting";
  finishReasons = {};
  /** The last `progress` frame; null while the stream is generating tokens. */
  progress = null;
  #window;
  #received;
  #shown;
  #allowed;
  #creditAt = -Infinity;
  #isCancelled = false;

  /** `window` is the number of tokens of each choice that may be received before they are shown. */
  constructor(id, numChoices, window) {
    this.id = id;
    this.#window = window;
    this.#received = Array(numChoices).fill(0);
    this.#shown = Array(numChoices).fill(0);
    this.#allowed = Array(numChoices).fill(window);
  }

  get isOver() {
    return ENDS.includes(this.state);
  }

  /** Process a frame of this stream. Returns whether it changed anything. */
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
        return this.#end("error");
      default:
        return false;
    }
  }

  /**
   * Mark all received tokens as shown.
   * @returns {object | null} a `credit` frame, if at most half of the window is left
   */
  show(now) {
    this.#shown = [...this.#received];
    if (this.isOver || this.#isCancelled || now < this.#creditAt + CREDIT_EVERY_MS || !this.#isLow()) return null;
    this.#creditAt = now;
    this.#allowed = this.#shown.map((number) => number + this.#window);
    return { t: "credit", id: this.id, upto: this.#allowed };
  }

  /** A `cancel` frame, unless the stream has ended or was cancelled already. */
  cancel() {
    if (this.isOver || this.#isCancelled) return null;
    this.#isCancelled = true;
    return { t: "cancel", id: this.id };
  }

  /** End the stream, because the connection has ended. */
  disconnect() {
    this.#end("disconnected");
  }

  #add({ i, n, k }) {
    // Tokens up to the last number were received before.
    if (n <= this.#received[i]) return false;
    this.#received[i] = n + k - 1;
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
