// One stream of quire.v1: received tokens, how far they have been shown, and when credit is due.
// Without a page and a socket: takes frames, and returns frames to send.
//
//   waiting -> streaming <-> paused -> done | error | disconnected
//
// A stream that the server keeps goes on after `disconnected`: another one begins at its `position`.

/** @typedef {import("../tree/record_types.js").Position} Position */

// Minimum time between two `credit` frames.
const CREDIT_EVERY_MS = 100;
const ENDS = ["done", "error", "disconnected"];

export class Stream {
  state = "waiting";
  finishReasons = {};
  /** The last `progress` frame; null while the stream is generating tokens. */
  progress = null;
  /** Whether the server has accepted the request. */
  isAccepted = false;
  /** @type {string | null} */
  #kept;
  #window;
  #received;
  #shown;
  #allowed;
  #creditAt = -Infinity;
  #isCancelled = false;

  /**
   * @param {string} id
   * @param {number[]} after number of the last token of each choice that was received before
   * @param {number} window tokens of each choice that may be received before they are shown
   * @param {string | null} kept the server's id, if it is known to keep the stream
   */
  constructor(id, after, window, kept = null) {
    this.id = id;
    this.#kept = kept;
    this.#window = window;
    this.#received = [...after];
    this.#shown = [...after];
    this.#allowed = after.map((number) => number + window);
  }

  /** Number of the last token of each choice that was received. */
  get received() {
    return [...this.#received];
  }

  /** Where the rest of the answer begins, if the server keeps it. @returns {Position | null} */
  get position() {
    return this.#kept === null ? null : { stream: this.#kept, after: this.received };
  }

  get isOver() {
    return ENDS.includes(this.state);
  }

  /** Process a frame of this stream. Returns whether it changed anything. */
  receive(frame) {
    switch (frame.t) {
      case "accepted":
        this.isAccepted = true;
        this.#kept = frame.ttl_s ? frame.stream : null;
        return true;
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
    // Text behind the last token, in a delta without tokens, has a number of its own.
    this.#received[i] = Math.max(n, n + k - 1);
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
